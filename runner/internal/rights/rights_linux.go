package rights

import (
	"fmt"
	"slices"
	"syscall"
	"unsafe"

	"hermes-exec/runner/internal/initproc"
)

// sysFaccessat2 is the same on every architecture; package syscall lacks it.
const sysFaccessat2 = 439

const (
	prSetKeepCaps      = 8
	prCapbsetDrop      = 24
	prSetNoNewPrivs    = 38
	prCapAmbient       = 47
	prCapAmbientClear  = 4
	capabilityVersion3 = 0x20080522
	lastCap            = 40

	CapChown       = 0
	CapKill        = 5
	CapSetgid      = 6
	CapSetuid      = 7
	CapSetpcap     = 8
	CapNetAdmin    = 12
	CapSysChroot   = 18
	CapSysPtrace   = 19
	CapSysAdmin    = 21
	CapSysResource = 24
	CapSetfcap     = 31
	CapDacOverride = 1
)

// containerCaps are the capabilities that Docker gives root in a container: CHOWN, DAC_OVERRIDE,
// FOWNER, FSETID, KILL, SETGID, SETUID, SETPCAP, NET_BIND_SERVICE, NET_RAW, SYS_CHROOT, MKNOD,
// AUDIT_WRITE, SETFCAP.
var containerCaps = []int{CapChown, CapDacOverride, 3, 4, CapKill, CapSetgid, CapSetuid, CapSetpcap, 10, 13,
	CapSysChroot, 27, 29, CapSetfcap}

// ContainerCaps returns the capabilities of a bit set that root has in a container.
func ContainerCaps(caps uint64) []int {
	return slices.DeleteFunc(slices.Clone(containerCaps), func(c int) bool { return caps&(1<<c) == 0 })
}

type capHeader struct {
	version uint32
	pid     int32
}

type capData struct{ effective, permitted, inheritable uint32 }

type capSets struct{ effective, permitted, inheritable uint64 }

// capsOf returns the capabilities of a thread of this process; 0 is the calling thread.
func capsOf(tid int) (capSets, error) {
	h := capHeader{version: capabilityVersion3, pid: int32(tid)}
	var d [2]capData
	if _, _, errno := syscall.RawSyscall(syscall.SYS_CAPGET, uintptr(unsafe.Pointer(&h)),
		uintptr(unsafe.Pointer(&d[0])), 0); errno != 0 {
		return capSets{}, errno
	}
	word := func(low, high uint32) uint64 { return uint64(low) | uint64(high)<<32 }
	return capSets{word(d[0].effective, d[1].effective), word(d[0].permitted, d[1].permitted),
		word(d[0].inheritable, d[1].inheritable)}, nil
}

// EffectiveCaps returns the capabilities of the calling thread as a bit set.
func EffectiveCaps() (uint64, error) {
	c, err := capsOf(0)
	return c.effective, err
}

func capsPermitted() uint64 {
	c, _ := capsOf(0)
	return c.permitted
}

func capWords(keep uint64) (*capHeader, *[2]capData) {
	low, high := uint32(keep), uint32(keep>>32)
	return &capHeader{version: capabilityVersion3},
		&[2]capData{{effective: low, permitted: low}, {effective: high, permitted: high}}
}

// fileCaps are the capabilities that ThreadFS sets aside and restores: CHOWN, DAC_OVERRIDE,
// DAC_READ_SEARCH, FOWNER, FSETID, LINUX_IMMUTABLE, MKNOD, MAC_OVERRIDE.
var fileCaps = []int{CapChown, CapDacOverride, 2, 3, 4, 9, 27, 32}

// KeepCaps leaves every thread of the process with at most the given capabilities, none
// inheritable, and so none ambient. With fsUID, the user whose file system rights some threads
// have, it sets aside the file capabilities of all threads, as ThreadFS does.
func KeepCaps(fsUID uint32, caps ...int) error {
	keep := capBits(caps) & capsPermitted()
	h, d := capWords(keep)
	effective := keep
	if fsUID != 0 {
		effective &^= capBits(fileCaps)
		d[0].effective, d[1].effective = uint32(effective), uint32(effective>>32)
	}
	err := initproc.RestrictThreads(unsafe.Pointer(h), unsafe.Pointer(d), func(tid int) (bool, error) {
		has, err := capsOf(tid)
		return has.effective&^effective == 0 && has.permitted&^keep == 0 && has.inheritable == 0, err
	})
	if err != nil {
		return fmt.Errorf("capset: %w", err)
	}
	return nil
}

func capBits(caps []int) uint64 {
	var out uint64
	for _, c := range caps {
		out |= 1 << c
	}
	return out
}

// ThreadKeepCaps is KeepCaps for the calling thread only.
func ThreadKeepCaps(caps ...int) error { return threadKeep(capBits(caps) & capsPermitted()) }

// ThreadNoInheritedCaps leaves the calling thread its capabilities, but none that the programs it
// starts would have under any user: some engines give all programs such capabilities.
func ThreadNoInheritedCaps() error { return threadKeep(capsPermitted()) }

func threadKeep(caps uint64) error {
	if _, _, errno := syscall.RawSyscall6(syscall.SYS_PRCTL, prCapAmbient, prCapAmbientClear, 0, 0, 0, 0); errno != 0 &&
		errno != syscall.EINVAL {
		return fmt.Errorf("clear ambient capabilities: %w", errno)
	}
	h, d := capWords(caps)
	if _, _, errno := syscall.RawSyscall(syscall.SYS_CAPSET, uintptr(unsafe.Pointer(h)), uintptr(unsafe.Pointer(d)),
		0); errno != 0 {
		return fmt.Errorf("capset: %w", errno)
	}
	return nil
}

// ThreadDropBounding removes a capability from the calling thread's bounding set, for good.
func ThreadDropBounding(capability int) error {
	_, _, errno := syscall.RawSyscall(syscall.SYS_PRCTL, prCapbsetDrop, uintptr(capability), 0)
	if errno != 0 {
		return fmt.Errorf("drop capability %d: %w", capability, errno)
	}
	return nil
}

// ThreadBound leaves only these capabilities in the calling thread's bounding set.
func ThreadBound(keep ...int) error {
	for c := 0; c <= lastCap; c++ {
		if slices.Contains(keep, c) {
			continue
		}
		if err := ThreadDropBounding(c); err != nil {
			return err
		}
	}
	return nil
}

// ThreadNoNewPrivs disables setuid programs for the programs that this thread starts.
func ThreadNoNewPrivs() error {
	_, _, errno := syscall.RawSyscall6(syscall.SYS_PRCTL, prSetNoNewPrivs, 1, 0, 0, 0, 0)
	if errno != 0 {
		return fmt.Errorf("no_new_privs: %w", errno)
	}
	return nil
}

// ThreadOwnKeyring gives the calling thread and its children a session keyring of their own. The
// inherited one may be the keyring of the driver's login, and a process that possesses a keyring
// may read its keys as any user. If the call is refused, it is refused to commands too.
func ThreadOwnKeyring() {
	const joinSessionKeyring = 1
	_, _, _ = syscall.RawSyscall(syscall.SYS_KEYCTL, joinSessionKeyring, 0, 0)
}

// RemoveUserKeys removes the keyrings of the calling thread's user with their keys. Otherwise the
// kernel keeps them for days, and each key that ends anywhere on the host takes longer. Engines that
// refuse these calls refuse them to commands too.
func RemoveUserKeys() error {
	const (
		getID         = 0
		invalidate    = 21
		getPersistent = 22
		ofThread      = -1
		ofUser        = -4
		ofUserSession = -5
		thisUser      = -1
		create        = 1
	)
	keyctl := func(call, first, second int) (int, syscall.Errno) {
		r, _, errno := syscall.RawSyscall(syscall.SYS_KEYCTL, uintptr(call), uintptr(first), uintptr(second))
		return int(int32(r)), errno
	}
	var rings []int
	// All are looked up before one is removed, because each lookup creates those that are missing.
	for _, lookup := range [][3]int{
		{getPersistent, thisUser, ofThread}, {getID, ofUser, create}, {getID, ofUserSession, create},
	} {
		if ring, errno := keyctl(lookup[0], lookup[1], lookup[2]); errno == 0 {
			rings = append(rings, ring)
		}
	}
	for _, ring := range rings {
		if _, errno := keyctl(invalidate, ring, 0); errno != 0 {
			return errno
		}
	}
	return nil
}

// ThreadFS gives the calling thread the file system rights of a user. From root this also sets its
// file capabilities aside; a switch back to 0 restores them.
func ThreadFS(uid, gid uint32, groups []uint32) error {
	if err := ThreadGroups(groups); err != nil {
		return err
	}
	_, _, _ = syscall.RawSyscall(syscall.SYS_SETFSGID, uintptr(gid), 0, 0)
	_, _, _ = syscall.RawSyscall(syscall.SYS_SETFSUID, uintptr(uid), 0, 0)
	// These two report no error: a second call returns the current value.
	if got, _, _ := syscall.RawSyscall(syscall.SYS_SETFSUID, ^uintptr(0), 0, 0); uint32(got) != uid {
		return fmt.Errorf("setfsuid %d: %w", uid, syscall.EPERM)
	}
	if got, _, _ := syscall.RawSyscall(syscall.SYS_SETFSGID, ^uintptr(0), 0, 0); uint32(got) != gid {
		return fmt.Errorf("setfsgid %d: %w", gid, syscall.EPERM)
	}
	return nil
}

// ThreadGroups sets the additional groups of the calling thread only.
func ThreadGroups(groups []uint32) error {
	var p unsafe.Pointer
	if len(groups) > 0 {
		p = unsafe.Pointer(&groups[0])
	}
	if _, _, errno := syscall.RawSyscall(syscall.SYS_SETGROUPS, uintptr(len(groups)), uintptr(p), 0); errno != 0 {
		return fmt.Errorf("setgroups: %w", errno)
	}
	return nil
}

// AsUser runs do on the calling thread (which must be locked) while it is uid and gid in every
// respect except the saved ids, and has no capability. It can then signal and change the processes
// of that user only.
func AsUser(uid, gid uint32, do func() error) error {
	if uid == 0 {
		return fmt.Errorf("as uid 0: %w", syscall.EINVAL)
	}
	set := func(call uintptr, id uint32) syscall.Errno {
		_, _, errno := syscall.RawSyscall(call, uintptr(id), uintptr(id), 0)
		return errno
	}
	if errno := set(syscall.SYS_SETRESGID, gid); errno != 0 {
		return fmt.Errorf("setresgid %d: %w", gid, errno)
	}
	back := func() {
		if errno := set(syscall.SYS_SETRESGID, 0); errno != 0 {
			// A thread that cannot switch back must not serve anybody else.
			panic(fmt.Sprintf("setresgid back: %v", errno))
		}
	}
	if errno := set(syscall.SYS_SETRESUID, uid); errno != 0 {
		back()
		return fmt.Errorf("setresuid %d: %w", uid, errno)
	}
	defer func() {
		if errno := set(syscall.SYS_SETRESUID, 0); errno != 0 {
			panic(fmt.Sprintf("setresuid back: %v", errno))
		}
		back()
	}()
	var r, e, s uint32
	_, _, errno := syscall.RawSyscall(syscall.SYS_GETRESUID, uintptr(unsafe.Pointer(&r)), uintptr(unsafe.Pointer(&e)),
		uintptr(unsafe.Pointer(&s)))
	caps, err := EffectiveCaps()
	if errno != 0 || err != nil || r != uid || e != uid || caps != 0 {
		return fmt.Errorf("not fully uid %d: %w", uid, syscall.EPERM)
	}
	return do()
}

// AsOwner runs do on the calling thread, of root, with uid as its effective user: a user namespace
// that it makes belongs to uid. The thread keeps root's capabilities and file system rights.
func AsOwner(uid uint32, do func() error) error {
	const keep = ^uintptr(0)
	set := func(id uint32) syscall.Errno {
		_, _, errno := syscall.RawSyscall(syscall.SYS_SETRESUID, keep, uintptr(id), keep)
		return errno
	}
	if errno := set(uid); errno != 0 {
		return fmt.Errorf("effective uid %d: %w", uid, errno)
	}
	defer func() {
		if errno := set(0); errno != 0 {
			panic(fmt.Sprintf("effective uid back: %v", errno))
		}
	}()
	_, _, _ = syscall.RawSyscall(syscall.SYS_SETFSUID, 0, 0, 0)
	if err := ThreadNoInheritedCaps(); err != nil {
		return err
	}
	return do()
}

// Accessible checks access with the calling thread's file system rights.
func Accessible(dirFD int, path string, mode uint32) error {
	p, err := syscall.BytePtrFromString(path)
	if err != nil {
		return err
	}
	const atEaccess = 0x200
	_, _, errno := syscall.Syscall6(sysFaccessat2, uintptr(dirFD), uintptr(unsafe.Pointer(p)), uintptr(mode), atEaccess,
		0, 0)
	if errno != 0 {
		return errno
	}
	return nil
}
