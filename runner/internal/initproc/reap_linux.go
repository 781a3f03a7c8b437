package initproc

import (
	"encoding/binary"
	"os"
	"os/signal"
	"syscall"
	"time"
	"unsafe"
)

const (
	pAll        = 0
	pPID        = 1
	wNoHang     = 0x1
	wStopped    = 0x2
	wExited     = 0x4
	wNoWait     = 0x01000000
	wAll        = 0x40000000
	siPID       = 16 // offset of si_pid in siginfo_t on 64-bit Linux
	minReapWait = 2 * time.Millisecond
	maxReapWait = time.Second
)

// ReapOrphans reaps every ended child that nobody in this program owns, as an init process or a
// child subreaper must.
func ReapOrphans() {
	ended := make(chan os.Signal, 1)
	signal.Notify(ended, syscall.SIGCHLD)
	watchesChildren.Store(true)
	go func() {
		timer := time.NewTimer(0)
		wait := minReapWait
		for {
			select {
			case <-ended:
				wait = minReapWait
			case <-timer.C:
			}
			announce(func(pid int) bool { return peek(pPID, pid) == pid })
			continueStopped()
			// An owned child at the head of the queue hides those behind it until its owner has
			// reaped it.
			if reap() {
				timer.Reset(wait)
				wait = min(2*wait, maxReapWait)
			}
		}
	}()
}

// reap reports whether an owned child stood in the way.
func reap() bool {
	children.mu.Lock()
	defer children.mu.Unlock()
	for {
		pid := peek(pAll, 0)
		if pid <= 0 {
			return false
		}
		if isOwned(pid) {
			return true
		}
		if _, err := syscall.Wait4(pid, nil, syscall.WNOHANG, nil); err != nil && err != syscall.EINTR {
			return false
		}
	}
}

// waitid waits for children; pid is 0 if none matches.
func waitid(kind, id, options int) (pid int, errno syscall.Errno) {
	var info [128]byte
	for {
		_, _, errno = syscall.Syscall6(syscall.SYS_WAITID, uintptr(kind), uintptr(id),
			uintptr(unsafe.Pointer(&info[0])), uintptr(options), 0, 0)
		if errno != syscall.EINTR {
			return int(int32(binary.NativeEndian.Uint32(info[siPID:]))), errno
		}
	}
}

// peek returns the pid of a child that has ended, and does not reap it.
func peek(kind, id int) int {
	pid, errno := waitid(kind, id, wNoHang|wExited|wNoWait)
	if errno != 0 {
		return 0
	}
	return pid
}

// continueStopped continues owned children that were stopped. A tenant that is root in its sandbox
// can stop them, and its slot would hang for ever.
func continueStopped() {
	children.entry.Lock()
	defer children.entry.Unlock()
	for pid := range children.pids {
		if stopped, errno := waitid(pPID, pid, wNoHang|wStopped); errno == 0 && stopped == pid {
			_ = syscall.Kill(pid, syscall.SIGCONT)
		}
	}
}

// HasNoChildren reports whether this process has no child, including children that have ended and
// wait to be reaped.
func HasNoChildren() bool {
	_, errno := waitid(pAll, 0, wNoHang|wExited|wNoWait|wAll)
	return errno == syscall.ECHILD
}

// WaitForDeadChild waits until a child has ended, or stops under trace, and does not reap it. It
// returns the child's pid, or 0 if there is no child.
func WaitForDeadChild() int {
	pid, _ := waitid(pAll, 0, wExited|wNoWait|wAll)
	return pid
}

// HasDeadChild reports whether a child has ended and waits to be reaped.
func HasDeadChild() bool {
	pid, _ := waitid(pAll, 0, wNoHang|wExited|wNoWait|wAll)
	return pid > 0
}

// announce closes the channels of owned children for which ended returns true.
func announce(ended func(pid int) bool) {
	children.entry.Lock()
	defer children.entry.Unlock()
	for pid, ch := range children.pids {
		select {
		case <-ch:
		default:
			if ended(pid) {
				close(ch)
			}
		}
	}
}

func isOwned(pid int) bool {
	children.entry.Lock()
	defer children.entry.Unlock()
	_, ok := children.pids[pid]
	return ok
}
