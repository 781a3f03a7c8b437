package isolation

import (
	"fmt"
	"syscall"
	"unsafe"
)

const (
	prSetSeccomp      = 22
	seccompModeFilter = 2
	seccompAllow      = 0x7fff0000
	seccompErrno      = 0x00050000

	bpfLoad     = 0x20 // a word of what is asked about
	bpfIfEqual  = 0x15
	bpfReturn   = 0x06
	offNumber   = 0
	offArch     = 4
	offFirstArg = 16

	sysIOUringSetup = 425
)

// Families whose sockets are in no network namespace: the way to a virtual
// machine's hypervisor, near-field and Bluetooth radios, and modems.
var familiesWithoutNamespace = []uint32{40, 31, 39, 42}

// ThreadNoOtherNetworks keeps the calling thread, and what it starts, from
// networks that a network namespace does not take away. no_new_privs has to be
// set before.
func ThreadNoOtherNetworks() error {
	program := otherNetworks()
	filter := syscall.SockFprog{Len: uint16(len(program)), Filter: &program[0]}
	_, _, errno := syscall.RawSyscall(syscall.SYS_PRCTL, prSetSeccomp, seccompModeFilter,
		uintptr(unsafe.Pointer(&filter)))
	if errno == syscall.EINVAL || errno == syscall.ENOSYS {
		return nil // a kernel without filters, which has more to offer than this
	}
	if errno != 0 {
		return fmt.Errorf("seccomp: %w", errno)
	}
	return nil
}

// otherNetworks makes socket fail as on a kernel without these families, and
// io_uring, which can make sockets too, as on a kernel without it. A program of
// another instruction set has no sockets at all.
func otherNetworks() []syscall.SockFilter {
	deny := func(errno syscall.Errno) []syscall.SockFilter {
		return []syscall.SockFilter{{Code: bpfReturn, K: seccompErrno | uint32(errno)}}
	}
	load := func(offset uint32) syscall.SockFilter { return syscall.SockFilter{Code: bpfLoad, K: offset} }
	// unless skips then, if the word is not the value.
	unless := func(value uint32, then []syscall.SockFilter) []syscall.SockFilter {
		return append([]syscall.SockFilter{{Code: bpfIfEqual, K: value, Jf: uint8(len(then))}}, then...)
	}
	allow := syscall.SockFilter{Code: bpfReturn, K: seccompAllow}

	families := []syscall.SockFilter{load(offFirstArg)}
	for _, family := range familiesWithoutNamespace {
		families = append(families, unless(family, deny(syscall.EAFNOSUPPORT))...)
	}
	families = append(families, allow)
	native := append([]syscall.SockFilter{load(offNumber)}, unless(syscall.SYS_SOCKET, families)...)
	native = append(native, unless(sysIOUringSetup, deny(syscall.ENOSYS))...)
	for _, number := range otherABISockets {
		native = append(native, unless(number, deny(syscall.EAFNOSUPPORT))...)
	}
	native = append(native, allow)
	program := append([]syscall.SockFilter{load(offArch)}, unless(nativeArch, native)...)
	program = append(program, load(offNumber))
	for _, number := range otherArchSockets {
		program = append(program, unless(number, deny(syscall.EAFNOSUPPORT))...)
	}
	return append(program, allow)
}
