package initproc

import (
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"
	"unsafe"
)

const asTerminated = "HERMES_EXEC_TEST_TERMINATED"

// The sender of a SIGTERM is reported on any thread, and a sender that is forged with sigqueue(3)
// is not accepted. Runs in a pid namespace of its own.
func TestTerminationsHaveASender(t *testing.T) {
	if os.Getenv(asTerminated) != "" {
		terminations := HandleTerminations()
		fmt.Println("ready")
		fmt.Println((<-terminations).IsFromInside())
		if err := syscall.Kill(os.Getpid(), syscall.SIGTERM); err != nil {
			t.Fatal(err)
		}
		fmt.Println((<-terminations).IsFromInside())
		fmt.Println((<-terminations).IsFromInside())
		return
	}
	cmd := exec.Command("/proc/self/exe", "-test.run=^TestTerminationsHaveASender$", "-test.count=1")
	cmd.Env = append(os.Environ(), asTerminated+"=1")
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWUSER | syscall.CLONE_NEWPID}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := startOwned(cmd); err != nil {
		t.Skip("no pid namespace can be made: ", err)
	}
	defer func() { _ = cmd.Process.Kill(); _ = cmd.Wait(); Disown(cmd.Process.Pid) }()
	said := func(want string) {
		t.Helper()
		var line string
		if _, err := fmt.Fscanln(out, &line); err != nil || line != want {
			t.Errorf("%q, not %q (%v)", line, want, err)
		}
	}
	said("ready")
	pid := cmd.Process.Pid
	if err := syscall.Kill(pid, syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	said("false")
	said("true")
	info := [128]byte{}
	*(*int32)(unsafe.Pointer(&info[0])) = int32(syscall.SIGTERM)
	*(*int32)(unsafe.Pointer(&info[8])) = -1 // SI_QUEUE, with 0 as its sender
	if _, _, errno := syscall.Syscall(syscall.SYS_RT_SIGQUEUEINFO, uintptr(pid), uintptr(syscall.SIGTERM),
		uintptr(unsafe.Pointer(&info))); errno != 0 {
		t.Fatal(errno)
	}
	said("true")
}

// A program under load takes the signal on any of its threads, and goes on.
func TestTerminationsDisturbNothing(t *testing.T) {
	const asBusy = "HERMES_EXEC_TEST_BUSY"
	if os.Getenv(asBusy) != "" {
		terminations := HandleTerminations()
		for range 2 * runtime.NumCPU() {
			go func() {
				for {
					_ = strings.Repeat("x", 1<<12)
					runtime.Gosched()
				}
			}()
		}
		fmt.Println("ready")
		count := 0
		for range terminations {
			if count++; count == 200 {
				fmt.Println("done")
				return
			}
		}
	}
	cmd := exec.Command("/proc/self/exe", "-test.run=^TestTerminationsDisturbNothing$", "-test.count=1")
	cmd.Env = append(os.Environ(), asBusy+"=1")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := startOwned(cmd); err != nil {
		t.Fatal(err)
	}
	defer Disown(cmd.Process.Pid)
	var line string
	if _, err := fmt.Fscanln(out, &line); err != nil || line != "ready" {
		t.Fatal(line, err)
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_, _ = fmt.Fscanln(out, &line)
	}()
	for {
		select {
		case <-ended:
			if err := cmd.Wait(); line != "done" || err != nil {
				t.Error(line, err)
			}
			return
		case <-time.After(time.Millisecond):
			_ = cmd.Process.Signal(syscall.SIGTERM)
		}
	}
}
