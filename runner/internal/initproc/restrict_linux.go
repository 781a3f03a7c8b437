package initproc

import (
	"errors"
	"os"
	"strconv"
	"sync"
	"syscall"
	"time"
	"unsafe"

	"hermes-exec/runner/internal/bounded"
)

// The arguments of capset for the handler of restrictSignal. The memory must not move, so it is
// referred to from here.
var (
	restriction        [2]unsafe.Pointer //lint:ignore U1000 read by onRestriction
	restrictionHandler uintptr
	restricting        sync.Mutex
)

const (
	restrictSignal  = syscall.SIGUSR2
	restrictTimeout = 10 * time.Second
)

// RestrictThreads has every thread of this process call capset(header, data), and returns when done
// reports success for each. The Go runtime's own way (AllThreadsSyscall) needs a free entry in the
// queue of signals, which a tenant may have used up; this signal needs none, because it carries no
// data.
func RestrictThreads(header, data unsafe.Pointer, done func(tid int) (bool, error)) error {
	restricting.Lock()
	defer restricting.Unlock()
	restriction = [2]unsafe.Pointer{header, data}
	handle(restrictSignal, restrictionHandler)
	defer handle(restrictSignal, disregardHandler)
	// A thread that is missing in the list was made by a thread that was not done: it is in the
	// next list.
	deadline := time.Now().Add(restrictTimeout)
	for clean := 0; clean < 2; {
		left, err := signalThreads(done)
		switch {
		case err != nil:
			return err
		case left == 0:
			clean++
		case time.Now().After(deadline):
			return errors.New("a thread takes no signals")
		default:
			clean = 0
			yield()
		}
	}
	return nil
}

// signalThreads signals the threads that are not done, and counts them.
func signalThreads(done func(tid int) (bool, error)) (left int, err error) {
	pid := os.Getpid()
	listing := bounded.EachName("/proc/self/task", func(name string) bool {
		tid, bad := strconv.Atoi(name)
		if err = bad; err != nil {
			return false
		}
		var ok bool
		if ok, err = done(tid); err == nil && !ok {
			left++
			err = syscall.Tgkill(pid, tid, restrictSignal)
		}
		if err == syscall.ESRCH { // the thread has ended
			err = nil
		}
		return err == nil
	})
	return left, errors.Join(listing, err)
}

// yield lets other threads run, without the Go scheduler.
func yield() { _, _, _ = syscall.RawSyscall(syscall.SYS_SCHED_YIELD, 0, 0, 0) }
