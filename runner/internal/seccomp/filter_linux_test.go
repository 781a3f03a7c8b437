package seccomp

import (
	"os"
	"os/exec"
	"runtime"
	"syscall"
	"testing"
	"unsafe"
)

const inFilter = "HERMES_EXEC_TEST_IN_FILTER"

// inOwnProcess reports whether the test runs in a process of its own, with no_new_privs, where a
// filter may stay. Otherwise it runs the test there.
func inOwnProcess(t *testing.T) bool {
	t.Helper()
	if os.Getenv(inFilter) == "" {
		cmd := exec.Command(os.Args[0], "-test.run=^"+t.Name()+"$", "-test.v")
		cmd.Env = append(os.Environ(), inFilter+"=1")
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		return false
	}
	runtime.LockOSThread()
	const noNewPrivs = 38
	if _, _, errno := syscall.RawSyscall6(syscall.SYS_PRCTL, noNewPrivs, 1, 0, 0, 0, 0); errno != 0 {
		t.Fatal(errno)
	}
	return true
}

func TestIgnoreOwnersLetsEveryChownSucceed(t *testing.T) {
	if !inOwnProcess(t) {
		return
	}
	if err := ThreadIgnoreOwners(); err != nil {
		t.Fatal(err)
	}
	for _, number := range nativeCalls.chown {
		// Without the filter, the invalid descriptor or address is an error.
		if _, _, errno := syscall.RawSyscall6(uintptr(number), ^uintptr(0), 0, 5, 5, 0, 0); errno != 0 {
			t.Errorf("call %d: %v", number, errno)
		}
	}
	if err := syscall.Rmdir("/no/such/directory"); err != syscall.ENOENT {
		t.Error(err)
	}
}

func TestWhatAContainerMayNotCall(t *testing.T) {
	if !inOwnProcess(t) {
		return
	}
	if err := ThreadAsInContainer(true, true); err != nil {
		t.Fatal(err)
	}
	var limit syscall.Rlimit
	call := func(number uint32, args ...uintptr) syscall.Errno {
		args = append(args, make([]uintptr, 6)...)
		_, _, errno := syscall.RawSyscall6(uintptr(number), args[0], args[1], args[2], args[3], args[4], args[5])
		return errno
	}
	for _, number := range nativeCalls.refused {
		if errno := call(number); errno != syscall.EPERM {
			t.Errorf("call %d: %v", number, errno)
		}
	}
	at := uintptr(unsafe.Pointer(&limit))
	prlimit, setpriority, ioprio := nativeCalls.onProcess[0], nativeCalls.setpriority, nativeCalls.ioprioSet
	pid := uintptr(os.Getpid())
	if pid < FirstPID {
		pid = 0
	}
	for what, c := range map[string]struct {
		got, want syscall.Errno
	}{
		"clone3":                 {call(435), syscall.ENOSYS},
		"io_uring_setup":         {call(sysIOUringSetup), syscall.ENOSYS},
		"clone into namespaces":  {call(nativeCalls.clone, syscall.CLONE_NEWUSER|uintptr(syscall.SIGCHLD)), syscall.EPERM},
		"AF_VSOCK":               {call(nativeCalls.socket, vsock, syscall.SOCK_STREAM), syscall.EPERM},
		"AF_INET":                {call(nativeCalls.socket, syscall.AF_INET, 99), syscall.EINVAL},
		"TIOCSTI":                {call(nativeCalls.ioctl, 0, tiocsti), syscall.EPERM},
		"another ioctl":          {call(nativeCalls.ioctl, 1<<20, 0x5401), syscall.EBADF},
		"limits of init":         {call(prlimit, 1, 7, 0, at), syscall.EPERM},
		"limits of a thread":     {call(prlimit, FirstPID-1, 7, 0, at), syscall.EPERM},
		"limits of oneself":      {call(prlimit, 0, 7, 0, at), 0},
		"limits of a process":    {call(prlimit, pid, 7, 0, at), 0},
		"priority of init":       {call(setpriority, 0, 1, 5), syscall.EPERM},
		"priority of a user":     {call(setpriority, 2, 0, 5), syscall.EPERM},
		"priority of oneself":    {call(setpriority, 0, 0, 1), 0},
		"I/O of a user":          {call(ioprio, 3, 0, 0), syscall.EPERM},
		"I/O priority of init":   {call(ioprio, 1, 1, 0), syscall.EPERM},
		"scheduling of init":     {call(nativeCalls.onProcess[2], 1, 0, 0), syscall.EPERM},
		"processors of a thread": {call(nativeCalls.onProcess[3], 7, 8, at), syscall.EPERM},
	} {
		if c.got != c.want {
			t.Errorf("%s: %v, want %v", what, c.got, c.want)
		}
	}
}
