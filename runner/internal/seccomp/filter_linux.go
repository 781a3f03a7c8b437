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

	bpfLoad      = 0x20 // a word of the call's data
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
	newNamespaces   = 0x7e020000 // clone's flags for all namespaces
	vsock           = 40
	prioUser        = 2
	ioprioWhoUser   = 3
)

// refusal is a system call that has no effect and fails, or succeeds with errno 0: always, or if an
// argument passes a test.
type refusal struct {
	number uint32
	errno  syscall.Errno
	arg    int // counted from 1; 0: with any arguments
	test   uint16
	value  uint32
}

// FirstPID is the least pid of a tenant in a root of its own. The numbers below it belong to the
// slot's agent and its threads.
const FirstPID = 300

// Families whose sockets belong to no network namespace: the connection to a virtual machine's
// hypervisor, near-field and Bluetooth radios, and modems.
var familiesWithoutNamespace = []uint32{vsock, 31, 39, 42}

// otherNetworks makes socket fail as on a kernel without these families, and io_uring, which can
// make sockets too, as on a kernel without it. Programs of another instruction set have no sockets
// at all.
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

// asInContainer refuses the calls that an engine's own filter refuses in a container. A sandbox in
// which slots have roots of their own allows the runner to make namespaces and mounts, and some
// engines have no filter. ownInit means that the processes below FirstPID are the slot's agent.
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
		// A tenant that is root has the same user as its agent, whose limits and priority it must
		// not change.
		for _, number := range of.onProcess {
			out = append(out, refusal{number, syscall.EPERM, 1, belowFirstPID, 0})
		}
		// For these two the second argument is the number, unless the first selects a user.
		return append(out,
			refusal{of.setpriority, syscall.EPERM, 2, belowFirstPID, 0},
			refusal{of.setpriority, syscall.EPERM, 1, bpfIfEqual, prioUser},
			refusal{of.ioprioSet, syscall.EPERM, 2, belowFirstPID, 0},
			refusal{of.ioprioSet, syscall.EPERM, 1, bpfIfEqual, ioprioWhoUser})
	}
	return rules(&nativeCalls), rules(&otherCalls)
}

// callNumbers are the system calls of an instruction set.
type callNumbers struct {
	refused                []uint32
	clone, ioctl, socket   uint32
	setpriority, ioprioSet uint32
	chown                  []uint32 // the calls that change the owner of a file
	onProcess              []uint32 // prlimit64 and the calls of the scheduler, whose first argument is a process
}

// belowFirstPID stands for two tests of the kernel's filter machine.
const belowFirstPID = 0xffff

// newCalls: open_tree, move_mount, fsopen, fsconfig, fsmount, fspick,
// mount_setattr, quotactl_fd, statmount, listmount, open_tree_attr.
var newCalls = []uint32{428, 429, 430, 431, 432, 433, 442, 443, 457, 458, 467}

// ThreadNoOtherNetworks keeps the calling thread and its children from networks that a network
// namespace does not cover. no_new_privs must be set before.
func ThreadNoOtherNetworks() error { return threadFilter(filter(otherNetworks())) }

// ThreadAsInContainer restricts the calling thread and its children to the calls of a container. It
// requires CAP_SYS_ADMIN or no_new_privs.
func ThreadAsInContainer(network, ownInit bool) error {
	native, other := asInContainer(ownInit)
	if !network {
		more, moreOther := otherNetworks()
		native, other = append(native, more...), append(other, moreOther...)
	}
	return threadFilter(filter(native, other))
}

// ThreadIgnoreOwners makes each change of a file's owner by the calling thread and its children
// succeed without an effect. It is for root of a user namespace with one id: every other owner is
// refused there, and programs that unpack files give up. no_new_privs must be set before.
func ThreadIgnoreOwners() error {
	rules := func(of *callNumbers) (out []refusal) {
		for _, number := range of.chown {
			out = append(out, refusal{number: number})
		}
		return out
	}
	return threadFilter(filter(rules(&nativeCalls), rules(&otherCalls)))
}

func threadFilter(program []syscall.SockFilter) error {
	filter := syscall.SockFprog{Len: uint16(len(program)), Filter: &program[0]}
	_, _, errno := syscall.RawSyscall(syscall.SYS_PRCTL, prSetSeccomp, seccompModeFilter,
		uintptr(unsafe.Pointer(&filter)))
	if errno == syscall.EINVAL || errno == syscall.ENOSYS {
		return nil // a kernel without filters has other weaknesses than these calls
	}
	if errno != 0 {
		return fmt.Errorf("seccomp: %w", errno)
	}
	return nil
}

// filter returns the program for calls of this machine's instruction set and of the second
// instruction set of its kernel. Calls of a third, whose numbers have an extra bit, fail as
// missing.
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

// refuse allows all calls that match no rule.
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
