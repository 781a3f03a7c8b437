package rights

import (
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"
	"unsafe"
)

const inChild = "HERMES_EXEC_TEST_KEEP_CAPS"

// Runs in a process of its own without a free entry in the queue of signals, as a tenant may leave
// it.
func TestKeepCapsNeedsNoQueuedSignal(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("not root")
	}
	if os.Getenv(inChild) == "" {
		cmd := exec.Command("/proc/self/exe", "-test.run=^TestKeepCapsNeedsNoQueuedSignal$", "-test.count=1")
		cmd.Env = append(os.Environ(), inChild+"=1")
		timer := time.AfterFunc(30*time.Second, func() { _ = cmd.Process.Kill() })
		defer timer.Stop()
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		return
	}
	const sigpending = 11
	var none syscall.Rlimit
	if _, _, errno := syscall.RawSyscall6(syscall.SYS_PRLIMIT64, 0, sigpending, uintptr(unsafe.Pointer(&none)), 0, 0,
		0); errno != 0 {
		t.Fatal(errno)
	}
	busy := make(chan struct{})
	var waiting sync.WaitGroup
	waiting.Add(20)
	for range 20 {
		go func() {
			runtime.LockOSThread()
			waiting.Done()
			<-busy
		}()
	}
	waiting.Wait()
	for range 20 { // threads that are made meanwhile
		go func() {
			var seconds = syscall.Timespec{Sec: 1}
			_ = syscall.Nanosleep(&seconds, nil)
		}()
	}
	if err := KeepCaps(0, CapKill, CapSetuid); err != nil {
		t.Fatal(err)
	}
	threads, err := os.ReadDir("/proc/self/task")
	if err != nil {
		t.Fatal(err)
	}
	want := uint64(1<<CapKill | 1<<CapSetuid)
	for _, thread := range threads {
		tid, _ := strconv.Atoi(thread.Name())
		if has, err := capsOf(tid); err == nil && (has != capSets{want, want, 0}) {
			t.Errorf("thread %d has %x", tid, has)
		}
	}
	if len(threads) < 20 {
		t.Errorf("only %d threads", len(threads))
	}
	close(busy)
}

// A user namespace that is made meanwhile belongs to the owner, and nothing else
// of the thread changes.
func TestAsOwner(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("not root")
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	before, _ := capsOf(0)
	const owner = 0x12345678
	if err := AsOwner(owner, func() error {
		during, err := capsOf(0)
		if during.effective != before.permitted {
			t.Errorf("%x, and had %x", during, before)
		}
		if syscall.Geteuid() != owner || syscall.Getuid() != 0 {
			t.Errorf("uid %d, effective %d", syscall.Getuid(), syscall.Geteuid())
		}
		if got, _, _ := syscall.RawSyscall(syscall.SYS_SETFSUID, ^uintptr(0), 0, 0); got != 0 {
			t.Errorf("file system uid %d", got)
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
	if after, _ := capsOf(0); syscall.Geteuid() != 0 || after.effective != before.effective {
		t.Errorf("uid %d, %x after %x", syscall.Geteuid(), after, before)
	}
}
