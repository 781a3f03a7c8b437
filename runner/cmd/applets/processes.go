package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// start runs another applet of this program without stdin. The mark stays in its arguments, so that
// a check finds it from outside.
func start(attr *syscall.SysProcAttr, keepOutput bool, args ...string) (*exec.Cmd, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	cmd := exec.Command(self, args...)
	cmd.SysProcAttr = attr
	if keepOutput {
		cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	}
	return cmd, cmd.Start()
}

// leave SECONDS MARK starts a child in a session of its own that keeps stdout open, prints its pid
// and exits.
func leave(args []string) error {
	child, err := start(&syscall.SysProcAttr{Setsid: true}, true, "sleep", arg(args, 0), arg(args, 1))
	if err != nil {
		return err
	}
	fmt.Println(child.Process.Pid)
	return nil
}

// daemon MODE SECONDS MARK is one of the runaways of `tree`.
func daemon(args []string) error {
	rest := []string{"sleep", arg(args, 1), arg(args, 2)}
	switch arg(args, 0) {
	case "orphan": // the parent exits at once
		_, err := start(nil, false, rest...)
		return err
	case "session-orphan":
		_, err := start(&syscall.SysProcAttr{Setsid: true}, false, rest...)
		return err
	case "stubborn":
		signal.Ignore(syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP)
	case "stopped":
		if err := syscall.Kill(os.Getpid(), syscall.SIGSTOP); err != nil {
			return err
		}
	case "bare":
		self, err := os.Executable()
		if err != nil {
			return err
		}
		return syscall.Exec(self, append([]string{self}, rest...), nil)
	}
	time.Sleep(seconds(args, 1))
	return nil
}

// treeModes are the ways in which a descendant tries to outlive its command.
var treeModes = []string{"plain", "session", "orphan", "session-orphan", "stubborn", "stopped", "bare", "group"}

// tree SECONDS MARK starts one descendant of each mode, prints `ready` and sleeps. The descendant
// in a session of its own keeps stdout open. With `end` as third argument tree exits and leaves
// them.
func tree(args []string) error {
	for _, mode := range treeModes {
		attr := &syscall.SysProcAttr{Setsid: mode == "session", Setpgid: mode == "group"}
		child, err := start(attr, mode == "session", "daemon", mode, arg(args, 0), arg(args, 1))
		if err != nil {
			return err
		}
		if strings.Contains(mode, "orphan") {
			_ = child.Wait()
		}
	}
	fmt.Println("ready")
	if arg(args, 2) != "end" {
		time.Sleep(seconds(args, 0))
	}
	return nil
}

// many COUNT SECONDS MARK starts up to COUNT sleepers and prints how many it started and the error
// that stopped it.
func many(args []string) error {
	n := 0
	var err error
	for ; n < number(args, 0); n++ {
		if _, err = start(nil, false, "sleep", arg(args, 1), arg(args, 2)); err != nil {
			break
		}
	}
	fmt.Printf("%d ", n)
	return printOutcome(err)
}

// bomb MARK starts copies of itself until it is killed.
func bomb(args []string) error {
	for {
		if _, err := start(&syscall.SysProcAttr{Setsid: true}, false, "bomb", arg(args, 0)); err != nil {
			time.Sleep(10 * time.Millisecond)
		}
	}
}

// kill PID SIGNAL sends a signal; the pid -1 means all processes.
func kill(args []string) error {
	return printOutcome(syscall.Kill(number(args, 0), syscall.Signal(number(args, 1))))
}

// ps prints the processes that /proc shows to this process: pid and command line.
func ps([]string) error {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return err
	}
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		line, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
		fmt.Printf("%d %s\n", pid, bytes.ReplaceAll(line, []byte{0}, []byte{' '}))
	}
	return nil
}

// ptrace PID tries to attach and to open the memory of a process.
func ptrace(args []string) error {
	pid := number(args, 0)
	err := syscall.PtraceAttach(pid)
	if err == nil {
		_ = syscall.PtraceDetach(pid)
	}
	if err := printOutcome(err); err != nil {
		return err
	}
	file, err := os.OpenFile(fmt.Sprintf("/proc/%d/mem", pid), os.O_RDWR, 0)
	if err == nil {
		file.Close()
	}
	return printOutcome(err)
}

// namespace NAME… prints the namespaces of this process.
func namespace(args []string) error {
	var all []error
	for _, name := range args {
		target, err := os.Readlink("/proc/self/ns/" + name)
		fmt.Println(target)
		all = append(all, err)
	}
	return errors.Join(all...)
}
