package seccomp

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

	bpfLoad      = 0x20 // a word of what is asked about
	bpfJump      = 0x05
	bpfIfEqual   = 0x15
	bpfIfAtLeast = 0x35
	bpfIfAnyBit  = 0x45
	bpfReturn    = 0x06
	offNumber    = 0
	offArch      = 4
	offFirstArg  = 16

	sysIOUringSetup = 425
	tioclinux       = 0x541c
	tiocsti         = 0x5412
	newNamespaces   = 0x7e020000 // clone's flags for namespaces of every kind
	vsock           = 40
	prioUser        = 2
	ioprioWhoUser   = 3
)

// refusal is a system call that fails: always, or where an argument passes a
// test.
type refusal struct {
	number uint32
	errno  syscall.Errno
	arg    int // counted from 1; 0: whatever the arguments
	test   uint16
	value  uint32
}

// FirstPID is the least number of a process of a tenant in a root of its own.
// Those below are the slot's init and its threads.
const FirstPID = 300

// Families whose sockets are in no network namespace: the way to a virtual
// machine's hypervisor, near-field and Bluetooth radios, and modems.
var familiesWithoutNamespace = []uint32{vsock, 31, 39, 42}

// otherNetworks makes socket fail as on a kernel without these families, and
// io_uring, which can make sockets too, as on a kernel without it. A program of
// another instruction set has no sockets at all.
func otherNetworks() (native, other []refusal) {
	for _, family := range familiesWithoutNamespace {
		native = append(native, refusal{syscall.SYS_SOCKET, syscall.EAFNOSUPPORT, 1, bpfIfEqual, family})
	}
	native = append(native, refusal{number: sysIOUringSetup, errno: syscall.ENOSYS})
	for _, number := range otherArchSockets {
		other = append(other, refusal{number: number, errno: syscall.EAFNOSUPPORT})
	}
	return native, other
}

// asInContainer refuses what an engine's own filter refuses in a container:
// that of a sandbox in which slots have roots of their own lets the runner make
// namespaces and mount, and some engines have none. ownInit says that the
// processes below FirstPID are the slot's init.
func asInContainer(ownInit bool) (native, other []refusal) {
	rules := func(of *callNumbers) (out []refusal) {
		for _, number := range of.refused {
			out = append(out, refusal{number: number, errno: syscall.EPERM})
		}
		for _, number := range []uint32{425, 426, 427} { // io_uring
			out = append(out, refusal{number: number, errno: syscall.ENOSYS})
		}
		out = append(out,
			refusal{number: 435, errno: syscall.ENOSYS}, // clone3, whose flags are in memory
			refusal{of.clone, syscall.EPERM, 1, bpfIfAnyBit, newNamespaces},
			refusal{of.ioctl, syscall.EPERM, 2, bpfIfEqual, tiocsti},
			refusal{of.ioctl, syscall.EPERM, 2, bpfIfEqual, tioclinux},
			refusal{of.socket, syscall.EPERM, 1, bpfIfEqual, vsock})
		if !ownInit {
			return out
		}
		// A tenant that is root has the user of its init, whose limits and priority
		// are not its own to change.
		for _, number := range of.onProcess {
			out = append(out, refusal{number, syscall.EPERM, 1, belowFirstPID, 0})
		}
		// Of these two the second argument is the number, unless the first says that a user is meant.
		return append(out,
			refusal{of.setpriority, syscall.EPERM, 2, belowFirstPID, 0},
			refusal{of.setpriority, syscall.EPERM, 1, bpfIfEqual, prioUser},
			refusal{of.ioprioSet, syscall.EPERM, 2, belowFirstPID, 0},
			refusal{of.ioprioSet, syscall.EPERM, 1, bpfIfEqual, ioprioWhoUser})
	}
	return rules(&nativeCalls), rules(&otherCalls)
}

// callNumbers are those of an instruction set.
type callNumbers struct {
	refused                []uint32
	clone, ioctl, socket   uint32
	setpriority, ioprioSet uint32
	onProcess              []uint32 // prlimit64 and those of the scheduler, whose first argument is a process
}

// belowFirstPID is no test of the kernel's machine but two of them.
const belowFirstPID = 0xffff

// newCalls: open_tree, move_mount, fsopen, fsconfig, fsmount, fspick,
// mount_setattr, quotactl_fd, statmount, listmount, open_tree_attr.
var newCalls = []uint32{428, 429, 430, 431, 432, 433, 442, 443, 457, 458, 467}

// ThreadNoOtherNetworks keeps the calling thread, and what it starts, from
// networks that a network namespace does not take away. no_new_privs has to be
// set before.
func ThreadNoOtherNetworks() error { return threadFilter(filter(otherNetworks())) }

// ThreadAsInContainer lets the calling thread, and what it starts, call what a
// container may. It takes CAP_SYS_ADMIN, or no_new_privs.
func ThreadAsInContainer(network, ownInit bool) error {
	native, other := asInContainer(ownInit)
	if !network {
		more, moreOther := otherNetworks()
		native, other = append(native, more...), append(other, moreOther...)
	}
	return threadFilter(filter(native, other))
}

func threadFilter(program []syscall.SockFilter) error {
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

// filter is the program for calls of this machine's instruction set and of the
// other one that its kernel knows. A third, whose numbers have a bit of their
// own, is not there at all.
func filter(native, other []refusal) []syscall.SockFilter {
	var forNative []syscall.SockFilter
	if thirdSet != 0 {
		forNative = append(forNative, load(offNumber),
			syscall.SockFilter{Code: bpfIfAtLeast, K: thirdSet, Jf: 1}, deny(syscall.ENOSYS))
	}
	forNative = append(forNative, refuse(native)...)
	program := []syscall.SockFilter{load(offArch), {Code: bpfIfEqual, K: nativeArch, Jt: 1},
		{Code: bpfJump, K: uint32(len(forNative))}}
	program = append(program, forNative...)
	return append(program, refuse(other)...)
}

func load(offset uint32) syscall.SockFilter { return syscall.SockFilter{Code: bpfLoad, K: offset} }

func deny(errno syscall.Errno) syscall.SockFilter {
	return syscall.SockFilter{Code: bpfReturn, K: seccompErrno | uint32(errno)}
}

// refuse allows all but what the rules name.
func refuse(rules []refusal) []syscall.SockFilter {
	out := []syscall.SockFilter{load(offNumber)}
	for _, r := range rules {
		if r.arg == 0 {
			out = append(out, syscall.SockFilter{Code: bpfIfEqual, K: r.number, Jf: 1}, deny(r.errno))
			continue
		}
		tests := []syscall.SockFilter{{Code: r.test, K: r.value, Jf: 1}}
		if r.test == belowFirstPID {
			tests = []syscall.SockFilter{{Code: bpfIfAtLeast, K: FirstPID, Jt: 2}, {Code: bpfIfEqual, K: 0, Jt: 1}}
		}
		out = append(out, syscall.SockFilter{Code: bpfIfEqual, K: r.number, Jf: uint8(len(tests) + 3)},
			load(offFirstArg+8*uint32(r.arg-1)))
		out = append(append(out, tests...), deny(r.errno), load(offNumber))
	}
	return append(out, syscall.SockFilter{Code: bpfReturn, K: seccompAllow})
}
