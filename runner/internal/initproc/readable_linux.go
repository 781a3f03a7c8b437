package initproc

import (
	"syscall"
	"time"
	"unsafe"
)

// WaitReadable waits in the kernel, with its thread, for something to read; in a
// descriptor of a process that is its end.
func WaitReadable(fd int, most time.Duration) bool {
	const pollIn = 1
	return poll(fd, pollIn, most)&pollIn != 0
}

// IsHungUp says whether nobody is at the other end of a socket or pipe any more.
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
		// What is left of the limit is put in its place.
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
