package rt

import (
	"syscall"
	"time"
	"unsafe"
)

// Readable waits in the kernel, with its thread, for something to read; in a
// descriptor of a process that is its end.
func Readable(fd int, most time.Duration) bool {
	const pollIn = 1
	poll := struct {
		fd              int32
		events, revents int16
	}{fd: int32(fd), events: pollIn}
	limit := syscall.NsecToTimespec(most.Nanoseconds())
	for {
		// What is left of the limit is put in its place.
		n, _, errno := syscall.Syscall6(syscall.SYS_PPOLL, uintptr(unsafe.Pointer(&poll)), 1, uintptr(unsafe.Pointer(&limit)), 0, 0, 0)
		if errno != syscall.EINTR {
			return errno == 0 && n == 1 && poll.revents&pollIn != 0
		}
	}
}
