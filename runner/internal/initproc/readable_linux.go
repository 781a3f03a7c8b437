package initproc

import (
	"syscall"
	"time"
	"unsafe"
)

// WaitReadable blocks its thread until a descriptor is readable. A pidfd is readable when its
// process has ended.
func WaitReadable(fd int, most time.Duration) bool {
	const pollIn = 1
	return poll(fd, pollIn, most)&pollIn != 0
}

// IsHungUp reports whether the other end of a socket or pipe is closed.
func IsHungUp(fd int) bool {
	const pollHangUp = 0x10
	return poll(fd, 0, 0)&pollHangUp != 0
}

func poll(fd int, events int16, most time.Duration) int16 {
	poll := struct {
		fd              int32
		events, revents int16
	}{fd: int32(fd), events: events}
	limit := syscall.NsecToTimespec(most.Nanoseconds())
	for {
		// The kernel updates limit to the time that is left.
		n, _, errno := syscall.Syscall6(syscall.SYS_PPOLL, uintptr(unsafe.Pointer(&poll)), 1,
			uintptr(unsafe.Pointer(&limit)), 0, 0, 0)
		if errno != syscall.EINTR {
			if errno != 0 || n != 1 {
				return 0
			}
			return poll.revents
		}
	}
}
