// Command probe is the only file of the distroless test image: small programs in one, for tests of a sandbox without a shell.
//
//	probe echo WORD…        the words, a newline               probe args …           argv as JSON
//	probe env [NAME]        one variable, or all, sorted       probe cat [FILE…]      files, or stdin, to stdout
//	probe write FILE        stdin to a file                    probe ls DIR           names, sorted
//	probe sleep SECONDS     waits                              probe exit CODE        ends with that code
//	probe cwd | id | tty    facts about this process           probe err WORD…        the words to stderr
//	probe spew BYTES [err]  that many bytes, a pattern         probe signal N         sends itself signal N
//	probe stubborn SECONDS  ignores TERM, INT and HUP          probe grow MIB         touches that much memory, then waits
//	probe leave SECONDS     leaves a child in a session of its own that keeps stdout open, prints its pid and ends
//	probe listen PORT       echoes each TCP connection on 127.0.0.1
package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

var programs = map[string]func(args []string) error{
	"echo":  func(args []string) error { return say(os.Stdout, args) },
	"err":   func(args []string) error { return say(os.Stderr, args) },
	"args":  func(args []string) error { return json.NewEncoder(os.Stdout).Encode(args) },
	"env":   env,
	"cat":   cat,
	"write": write,
	"ls":    list,
	"sleep": sleep,
	"exit":  exit,
	"cwd":   cwd,
	"id": func([]string) error {
		return say(os.Stdout, []string{fmt.Sprint(os.Getuid()), fmt.Sprint(os.Getgid())})
	},
	"tty":      tty,
	"spew":     spew,
	"signal":   raise,
	"stubborn": stubborn,
	"grow":     grow,
	"leave":    leave,
	"listen":   listen,
}

func main() {
	if len(os.Args) < 2 || programs[os.Args[1]] == nil {
		fmt.Fprintln(os.Stderr, "probe: no such program")
		os.Exit(2)
	}
	if err := programs[os.Args[1]](os.Args[2:]); err != nil {
		fmt.Fprintln(os.Stderr, "probe:", err)
		os.Exit(1)
	}
}

func say(to io.Writer, words []string) error {
	_, err := fmt.Fprintln(to, strings.Join(words, " "))
	return err
}

func number(args []string) (float64, error) {
	if len(args) == 0 {
		return 0, errors.New("a number is missing")
	}
	return strconv.ParseFloat(args[0], 64)
}

func env(args []string) error {
	if len(args) > 0 {
		value, found := os.LookupEnv(args[0])
		if !found {
			return fmt.Errorf("%s is not set", args[0])
		}
		return say(os.Stdout, []string{value})
	}
	all := os.Environ()
	slices.Sort(all)
	for _, entry := range all {
		fmt.Println(entry)
	}
	return nil
}

func cat(args []string) error {
	if len(args) == 0 {
		_, err := io.Copy(os.Stdout, os.Stdin)
		return err
	}
	for _, name := range args {
		content, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		if _, err := os.Stdout.Write(content); err != nil {
			return err
		}
	}
	return nil
}

func write(args []string) error {
	if len(args) != 1 {
		return errors.New("write takes one file name")
	}
	file, err := os.Create(args[0])
	if err != nil {
		return err
	}
	_, err = io.Copy(file, os.Stdin)
	return errors.Join(err, file.Close())
}

func list(args []string) error {
	entries, err := os.ReadDir(strings.Join(args, " "))
	if err != nil {
		return err
	}
	for _, entry := range entries {
		fmt.Println(entry.Name())
	}
	return nil
}

func sleep(args []string) error {
	seconds, err := number(args)
	time.Sleep(time.Duration(seconds * float64(time.Second)))
	return err
}

func exit(args []string) error {
	code, err := number(args)
	if err == nil {
		os.Exit(int(code))
	}
	return err
}

func cwd([]string) error {
	dir, err := os.Getwd()
	if err != nil {
		return err
	}
	return say(os.Stdout, []string{dir})
}

func tty([]string) error {
	info, err := os.Stdin.Stat()
	if err != nil {
		return err
	}
	return say(os.Stdout, []string{strconv.FormatBool(info.Mode()&os.ModeCharDevice != 0)})
}

func spew(args []string) error {
	total, err := number(args)
	if err != nil {
		return err
	}
	to := os.Stdout
	if len(args) > 1 && args[1] == "err" {
		to = os.Stderr
	}
	out := bufio.NewWriterSize(to, 1<<16)
	for i := range int(total) {
		if err := out.WriteByte(byte('a' + i%26)); err != nil {
			return err
		}
	}
	return out.Flush()
}

func raise(args []string) error {
	n, err := number(args)
	if err != nil {
		return err
	}
	signal.Reset()
	if err := syscall.Kill(os.Getpid(), syscall.Signal(int(n))); err != nil {
		return err
	}
	time.Sleep(time.Minute)
	return errors.New("still here")
}

func stubborn(args []string) error {
	signal.Ignore(syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP)
	fmt.Println("ready")
	return sleep(args)
}

func grow(args []string) error {
	mib, err := number(args)
	if err != nil {
		return err
	}
	memory := make([]byte, int(mib)<<20)
	for i := 0; i < len(memory); i += 4096 {
		memory[i] = 1
	}
	fmt.Println("grown", len(memory)>>20)
	return sleep([]string{"60"})
}

func leave(args []string) error {
	child := exec.Command("/proc/self/exe", append([]string{"stubborn"}, args...)...)
	child.Stdout, child.Stderr = os.Stdout, os.Stderr
	child.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := child.Start(); err != nil {
		return err
	}
	return say(os.Stdout, []string{strconv.Itoa(child.Process.Pid)})
}

func listen(args []string) error {
	if len(args) != 1 {
		return errors.New("listen takes one port")
	}
	listener, err := net.Listen("tcp", "127.0.0.1:"+args[0])
	if err != nil {
		return err
	}
	fmt.Println("listening")
	for {
		conn, err := listener.Accept()
		if err != nil {
			return err
		}
		go func() {
			_, _ = io.Copy(conn, conn)
			_ = conn.Close()
		}()
	}
}
