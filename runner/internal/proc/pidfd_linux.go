package proc

import (
	"syscall"
	"unsafe"
)

// The same on every architecture since Linux 5.
const (
	sysPidfdSendSignal = 424
	sysPidfdOpen       = 434
)

// PidfdOpen opens a descriptor for a process, which stays valid when the pid is reused.
func PidfdOpen(pid int) (int, error) {
	fd, _, errno := syscall.Syscall(sysPidfdOpen, uintptr(pid), 0, 0)
	if errno != 0 {
		return -1, errno
	}
	return int(fd), nil
}

// PidfdSignal sends a signal to the process of fd.
func PidfdSignal(fd int, sig syscall.Signal) error {
	if _, _, errno := syscall.Syscall6(sysPidfdSendSignal, uintptr(fd), uintptr(sig), 0, 0, 0, 0); errno != 0 {
		return errno
	}
	return nil
}

// BootTicks returns the time since boot in the unit of start times in /proc, hundredths of a
// second.
func BootTicks() uint64 {
	const clockBoottime = 7
	var ts syscall.Timespec
	_, _, _ = syscall.RawSyscall(syscall.SYS_CLOCK_GETTIME, clockBoottime, uintptr(unsafe.Pointer(&ts)), 0)
	return uint64(ts.Sec)*100 + uint64(ts.Nsec)/1e7
}
