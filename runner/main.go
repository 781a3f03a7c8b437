package main

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"time"

	"hermes-exec/runner/internal/agent"
	"hermes-exec/runner/internal/channel"
	"hermes-exec/runner/internal/detached"
	"hermes-exec/runner/internal/gpus"
	"hermes-exec/runner/internal/initproc"
	"hermes-exec/runner/internal/isolation"
	"hermes-exec/runner/internal/leftover"
	"hermes-exec/runner/internal/private"
	"hermes-exec/runner/internal/serve"
	"hermes-exec/runner/internal/slots"
)

// version is set by the linker.
var version = "dev"

const usage = `usage: runner serve --base DIR [--lease-s N] [--dial SOCKET] [--parent PID] [--hide DIR]… [--shared DIR]…
                    [--volume DIR]… [--own DIR]… [--remove DIR] [--network-of WHOM] [--unset NAME|PREFIX*|NAME=VALUE]…
                    [--filter] [--until-stdin-ends]
       runner attach --base DIR
       runner start --base DIRECTORY/hermes-exec-…/base --owner JSON [--lease-s N]
       runner status | end --base DIRECTORY/hermes-exec-…/base
       runner list --base DIRECTORY
       runner gpus --request JSON
       runner wipe DIR...
       runner sha256
       runner here
       runner probe
       runner cwd
       runner version
`

// init keeps the first thread of serve to main alone: Apptainer ends a sandbox with its parent by
// that thread's death signal (PR_SET_PDEATHSIG), which a switch to another user on that thread
// would clear.
func init() {
	if len(os.Args) > 1 && os.Args[1] == "serve" {
		runtime.LockOSThread()
	}
}

func main() { os.Exit(run(os.Args[1:])) }

func run(args []string) int {
	syscall.Umask(0o022) // modes of new files are exact
	if len(args) == 0 {
		fmt.Fprint(os.Stderr, usage)
		return 2
	}
	switch args[0] {
	case "serve":
		return runServe(args[1:])
	case "attach":
		return runAttach(args[1:])
	case "start", "status", "end", "list":
		return runDetached(args[0], args[1:])
	case "gpus":
		return runGPUs(args[1:])
	case "wipe":
		return runWipe(args[1:])
	case "sha256":
		fmt.Println(hashSelf())
		return 0
	case "here":
		return runHere()
	case "agent":
		return agent.Main(args[1:])
	case "probe":
		return runProbe()
	case "cwd":
		path, err := os.Getwd()
		if err != nil {
			fmt.Fprintln(os.Stderr, "runner cwd:", err)
			return 1
		}
		fmt.Println(path)
		return 0
	case "version":
		fmt.Println(version)
		return 0
	}
	fmt.Fprint(os.Stderr, usage)
	return 2
}

// runHere prints the hash of this program and its working directory, and waits until stdin ends: an
// engine may lose the output of a program that ends.
func runHere() int {
	dir, _ := os.Getwd()
	if err := json.NewEncoder(os.Stdout).Encode(map[string]string{"sha256": hashSelf(), "workdir": dir}); err != nil {
		return 1
	}
	_, _ = io.Copy(io.Discard, os.Stdin)
	return 0
}

// hashSelf returns the SHA-256 of the running program, "" if it cannot be read.
func hashSelf() string {
	path, err := os.Executable()
	if runtime.GOOS == "linux" {
		path, err = "/proc/self/exe", nil // also after the file was replaced
	}
	if err != nil {
		return ""
	}
	file, err := os.Open(path)
	if err != nil {
		return ""
	}
	defer file.Close()
	hash := sha256.New()
	if _, err := io.Copy(hash, file); err != nil {
		return ""
	}
	return hex.EncodeToString(hash.Sum(nil))
}

func runServe(args []string) int {
	initproc.StartFresh()
	// The other half is for the commands and the driver: idle threads of this program look for work
	// and would take their time.
	//
	// Not the obvious code: see docs/why-not-obvious.md ("Half of the processors").
	procs := min(runtime.GOMAXPROCS(0), max(1, min(8, runtime.NumCPU()/2)))
	initproc.Init(initproc.Options{Threads: 20, Procs: procs, GCPercent: 50, Subreaper: true})
	flags := flag.NewFlagSet("serve", flag.ContinueOnError)
	base := flags.String("base", "", "directory of this runner")
	lease := flags.Float64("lease-s", 60, "seconds until the first driver must have spoken")
	driver := flags.String("dial", "", "socket on which a driver waits for this runner")
	parent := flags.Int("parent", 0, "process with which this runner ends: its parent")
	var shared []string
	flags.Func("shared", "directory of the sandbox to which all slots write", func(path string) error {
		shared = append(shared, path)
		return nil
	})
	var own []string
	flags.Func("own", "mounted directory of the sandbox that ends with it", func(path string) error {
		own = append(own, path)
		return nil
	})
	var volumes []string
	flags.Func("volume", "mount of the configuration: files that slots leave there stay", func(path string) error {
		volumes = append(volumes, path)
		return nil
	})
	var unset []string
	flags.Func("unset", "variable to remove from the environment of commands", func(pattern string) error {
		unset = append(unset, pattern)
		return nil
	})
	network := flags.String("network-of", "", "owner of the sandbox's network, if that is not the sandbox")
	untilEOF := flags.Bool("until-stdin-ends", false, "end with the process that holds the other end of standard input")
	filter := flags.Bool("filter", false, "keep exclusive slots from system calls, for engines that do not")
	remove := flags.String("remove", "", "directory to remove after an orderly end")
	var hidden []string
	flags.Func("hide", "directory of the engine to hide from tenants", func(path string) error {
		hidden = append(hidden, path)
		return nil
	})
	if err := flags.Parse(args); err != nil || *base == "" || flags.NArg() > 0 {
		fmt.Fprint(os.Stderr, usage)
		return 2
	}
	unsetVariables(unset)
	terminations := initproc.HandleTerminations()
	initproc.ReapOrphans()
	logger := log.New(os.Stderr, "runner: ", log.LstdFlags|log.Lmicroseconds)
	for _, dir := range hidden {
		if err := private.Hide(dir); err != nil {
			logger.Printf("tenants may reach a directory of the engine: %v", err)
		}
	}
	leaseTime := time.Duration(*lease * float64(time.Second))
	server, err := newServer(*base, shared, volumes, own, *network, *filter, leaseTime, logger)
	if err != nil {
		logger.Print(err)
		return 1
	}
	if *driver != "" {
		go server.Endpoint.Dial(*driver)
	}
	if *untilEOF {
		go server.FollowStdin()
	}
	if *parent != 0 {
		go server.Follow(func() bool { return os.Getppid() != *parent })
	}
	go func() {
		for t := range terminations {
			if !t.IsFromInside() || !server.IsProtected() {
				server.End("shutdown", "the runner received SIGTERM")
				return
			}
		}
	}()
	if err := server.Run(); err != nil {
		logger.Print(err)
		return 1
	}
	if *remove != "" && private.Check(filepath.Dir(*remove)) == nil {
		detached.Remove(*remove)
	}
	return 0
}

// unsetVariables removes variables that an engine sets: by NAME, by PREFIX*, or by NAME=VALUE,
// which keeps other values.
func unsetVariables(patterns []string) {
	for _, variable := range os.Environ() {
		name, _, _ := strings.Cut(variable, "=")
		for _, pattern := range patterns {
			prefix, some := strings.CutSuffix(pattern, "*")
			if name == pattern || variable == pattern || some && strings.HasPrefix(name, prefix) {
				os.Unsetenv(name)
			}
		}
	}
}

// runDetached prints JSON: a sandbox, a list of sandboxes, or an error.
func runDetached(command string, args []string) int {
	flags := flag.NewFlagSet(command, flag.ContinueOnError)
	base := flags.String("base", "", "directory of a runner; for list, of the runners' directories")
	owner := flags.String("owner", "", "JSON with the owner of the runner")
	lease := flags.String("lease-s", "60", "as for serve")
	if err := flags.Parse(args); err != nil || *base == "" || flags.NArg() > 0 {
		fmt.Fprint(os.Stderr, usage)
		return 2
	}
	var answer any
	var err error
	switch command {
	case "start":
		answer, err = detached.Start(*base, json.RawMessage(*owner), "--lease-s", *lease)
	case "status":
		answer = detached.Read(*base)
	case "end":
		answer, err = detached.End(*base)
	case "list":
		answer, err = detached.List(*base)
	}
	code := 0
	if err != nil {
		answer, code = map[string]string{"error": err.Error()}, 1
	}
	if err := json.NewEncoder(os.Stdout).Encode(answer); err != nil {
		return 1
	}
	return code
}

// runGPUs prints how many slots there can be on this host, each with its own GPUs, or why the
// request for GPUs cannot be met: JSON for the driver.
func runGPUs(args []string) int {
	flags := flag.NewFlagSet("gpus", flag.ContinueOnError)
	text := flags.String("request", "", "JSON as in slot.create")
	var request gpus.Request
	if err := flags.Parse(args); err != nil || json.Unmarshal([]byte(*text), &request) != nil {
		fmt.Fprint(os.Stderr, usage)
		return 2
	}
	chosen, err := gpus.Find("").Select(request)
	answer := map[string]any{"slots": len(chosen) / max(1, request.PerSlot)}
	if err != nil {
		answer = map[string]any{"problem": err.Error()}
	}
	if err := json.NewEncoder(os.Stdout).Encode(answer); err != nil {
		return 1
	}
	return 0
}

func newServer(base string, shared, volumes, own []string, network string, filter bool, lease time.Duration,
	logger *log.Logger) (*serve.Server, error) {
	facts, err := isolation.Probe()
	if err != nil {
		return nil, err
	}
	manager, err := slots.NewManager(base, facts, ownPath())
	if err != nil {
		return nil, err
	}
	manager.SetShared(shared)
	manager.SetMounts(append(volumes, shared...))
	manager.SetNetworkOwner(network)
	if filter {
		manager.EnableFilter()
	}
	var roots []string
	if os.Getpid() == 1 { // otherwise the root belongs to a machine and must not change
		roots = append([]string{"/"}, own...)
	}
	return serve.New(serve.Config{Base: base, Roots: roots, Lease: lease, Slots: manager, Isolation: facts,
		Version: version, Log: logger})
}

// ownPath returns a path of this program that stays valid when its file is moved.
func ownPath() string {
	if runtime.GOOS == "linux" {
		return "/proc/self/exe"
	}
	path, err := os.Executable()
	if err != nil {
		return os.Args[0]
	}
	return path
}

// runWipe removes directories and prints the problems on standard error.
func runWipe(dirs []string) int {
	problems := leftover.Remove(dirs...)
	for _, problem := range problems {
		fmt.Fprintln(os.Stderr, "runner wipe:", problem)
	}
	return min(1, len(problems))
}

func runProbe() int {
	initproc.Init(initproc.Options{})
	out := json.NewEncoder(os.Stdout)
	out.SetIndent("", "  ")
	facts, err := isolation.Probe()
	if err != nil {
		fmt.Fprintln(os.Stderr, "runner probe:", err)
		return 1
	}
	if err := out.Encode(facts); err != nil {
		return 1
	}
	return 0
}

func runAttach(args []string) int {
	initproc.Init(initproc.Options{})
	flags := flag.NewFlagSet("attach", flag.ContinueOnError)
	base := flags.String("base", "", "directory of the serving runner")
	if err := flags.Parse(args); err != nil || *base == "" || flags.NArg() > 0 {
		fmt.Fprint(os.Stderr, usage)
		return 2
	}
	err := private.Check(filepath.Dir(*base))
	if err == nil || errors.Is(err, os.ErrNotExist) { // a runner that is starting has not made it yet
		err = channel.Attach(*base, os.Stdin, os.Stdout)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "runner", err)
		return 1
	}
	return 0
}
