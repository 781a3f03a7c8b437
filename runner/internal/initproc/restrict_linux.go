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

// What the handler of restrictSignal passes to capset. The memory is not Go's to
// move: it is referred to from here.
var (
	restriction        [2]unsafe.Pointer //lint:ignore U1000 read by onRestriction
	restrictionHandler uintptr
	restricting        sync.Mutex
)

const (
	restrictSignal  = syscall.SIGUSR2
	restrictTimeout = 10 * time.Second
)

// RestrictThreads has every thread of this process call capset(header, data),
// and returns when done says of each that it has. The Go runtime's own way
// (AllThreadsSyscall) waits for a free entry in the queue of signals, which a
// tenant may have used up; this signal needs none, for it carries nothing.
func RestrictThreads(header, data unsafe.Pointer, done func(tid int) (bool, error)) error {
	restricting.Lock()
	defer restricting.Unlock()
	restriction = [2]unsafe.Pointer{header, data}
	handle(restrictSignal, restrictionHandler)
	defer handle(restrictSignal, disregardHandler)
	// A thread that is not listed yet was made by one that was not done then: it
	// is in the next list.
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
		if err == syscall.ESRCH { // it has ended meanwhile
			err = nil
		}
		return err == nil
	})
	return left, errors.Join(listing, err)
}

// yield lets other threads run, and tells the Go runtime nothing of it.
func yield() { _, _, _ = syscall.RawSyscall(syscall.SYS_SCHED_YIELD, 0, 0, 0) }
