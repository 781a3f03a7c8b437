// Command runner works inside a sandbox for hermes-exec: it holds slots,
// commands, files and sessions of one box and speaks docs/protocol.md.
package main

import (
	"flag"
	"fmt"
	"io"
	"log"
	"os"
	"time"

	"hermes-exec/runner/internal/applet"
	"hermes-exec/runner/internal/rt"
	"hermes-exec/runner/internal/serve"
	"hermes-exec/runner/internal/serve/servetest"
)

// version is set by the linker.
var version = "dev"

const usage = `usage: runner serve --base DIR [--lease-s N] [--log FILE]
       runner attach --base DIR
       runner version
`

func main() { os.Exit(run(os.Args[1:])) }

func run(args []string) int {
	if len(args) == 0 {
		fmt.Fprint(os.Stderr, usage)
		return 2
	}
	switch args[0] {
	case "serve":
		return runServe(args[1:])
	case "attach":
		return runAttach(args[1:])
	case "applet": // small programs for the conformance suite
		return applet.Main(args[1:])
	case "version":
		fmt.Println(version)
		return 0
	}
	fmt.Fprint(os.Stderr, usage)
	return 2
}

func runServe(args []string) int {
	rt.Init(rt.Options{Threads: 20, MaxProcs: 8, GCPercent: 50, Subreaper: true})
	flags := flag.NewFlagSet("serve", flag.ContinueOnError)
	base := flags.String("base", "", "directory of this runner")
	lease := flags.Float64("lease-s", 60, "seconds until the first driver must have spoken")
	logFile := flags.String("log", "", "file for the log instead of standard error")
	if err := flags.Parse(args); err != nil || *base == "" || flags.NArg() > 0 {
		fmt.Fprint(os.Stderr, usage)
		return 2
	}
	terminations := rt.Terminations()
	rt.ReapOrphans()
	var out io.Writer = os.Stderr
	if *logFile != "" {
		file, err := os.OpenFile(*logFile, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
		if err != nil {
			fmt.Fprintln(os.Stderr, "runner serve:", err)
			return 1
		}
		out = file
	}
	logger := log.New(out, "runner: ", log.LstdFlags|log.Lmicroseconds)
	server, err := serve.New(serve.Config{
		Base: *base, Lease: time.Duration(*lease * float64(time.Second)), Slots: servetest.New(*base),
		Isolation: map[string]any{"highest": "none", "reasons": map[string]string{}, "landlock_abi": 0, "user_namespace": false, "cgroup": "none", "bubblewrap": false},
		Version:   version, Log: logger,
	})
	if err != nil {
		logger.Print(err)
		return 1
	}
	go func() {
		<-terminations
		server.End("the runner was told to end")
	}()
	if err := server.Run(); err != nil {
		logger.Print(err)
		return 1
	}
	return 0
}

func runAttach(args []string) int {
	rt.Init(rt.Options{})
	flags := flag.NewFlagSet("attach", flag.ContinueOnError)
	base := flags.String("base", "", "directory of the serving runner")
	if err := flags.Parse(args); err != nil || *base == "" || flags.NArg() > 0 {
		fmt.Fprint(os.Stderr, usage)
		return 2
	}
	if err := serve.Attach(*base, os.Stdin, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "runner", err)
		return 1
	}
	return 0
}
