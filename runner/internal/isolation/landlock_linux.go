package isolation

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"unsafe"

	"hermes-exec/runner/internal/rights"
)

// The same on every architecture; package syscall does not have them.
const (
	sysLandlockCreate   = 444
	sysLandlockAddRule  = 445
	sysLandlockRestrict = 446
)

const (
	llExecute = 1 << iota
	llWriteFile
	llReadFile
	llReadDir
	llRemoveDir
	llRemoveFile
	llMakeChar
	llMakeDir
	llMakeReg
	llMakeSock
	llMakeFifo
	llMakeBlock
	llMakeSym
	llRefer
	llTruncate
	llIoctlDev

	llScopeAbstract = 1
	llScopeSignal   = 2

	llFileOnly = llExecute | llWriteFile | llReadFile | llTruncate | llIoctlDev
)

type rulesetAttr struct{ fs, net, scoped uint64 }

type pathBeneath struct {
	access uint64
	fd     int32
}

// LandlockABI is the version of Landlock that this kernel offers, 0 for none.
func LandlockABI() int {
	v, _, errno := syscall.Syscall(sysLandlockCreate, 0, 0, 1)
	if errno != 0 {
		return 0
	}
	return int(v)
}

func handled(abi int) uint64 {
	all := uint64(llExecute<<13 - 1)
	if abi >= 2 {
		all |= llRefer
	}
	if abi >= 3 {
		all |= llTruncate
	}
	if abi >= 5 {
		all |= llIoctlDev
	}
	return all
}

// ScopeArg makes `runner agent ScopeArg` an agent in a Landlock domain of its
// own, which neither abstract sockets nor signals leave. ScopeFilesArg is for
// one whose threads are restricted in their files as well.
const (
	ScopeArg      = "--scope"
	ScopeFilesArg = "--scope-files"
)

// CanScope says whether the kernel has such domains.
func CanScope(abi int) bool { return abi >= 6 }

// Scope executes another program in a new domain, or returns why it cannot.
// Threads that restrict themselves one by one would each be in a domain of
// their own, and a program that is executed has one thread.
//
// Once any domain of a process restricts files, each of its domains has to
// allow that a file is moved or linked to another directory: this right alone
// is denied also by domains that do not name it. A domain that restricts files
// forbids mounts, so this one does so only where another one will.
func Scope(argv []string, files bool) error {
	runtime.LockOSThread()
	attr := rulesetAttr{scoped: llScopeAbstract | llScopeSignal}
	if files {
		attr.fs = llRefer
	}
	fd, _, errno := syscall.Syscall(sysLandlockCreate, uintptr(unsafe.Pointer(&attr)), unsafe.Sizeof(attr), 0)
	if errno != 0 {
		return fmt.Errorf("landlock ruleset: %w", errno)
	}
	defer syscall.Close(int(fd))
	syscall.CloseOnExec(int(fd))
	if files {
		if err := allow(int(fd), "/", llRefer); err != nil {
			return err
		}
	}
	if err := restrictSelf(fd); err != nil {
		return err
	}
	return syscall.Exec(SelfExe, argv, os.Environ())
}

// ThreadLandlock restricts the file system of the calling thread and of
// whatever it starts.
func ThreadLandlock(l Landlock) error {
	attr := rulesetAttr{fs: handled(l.ABI)}
	size := uintptr(8)
	fd, _, errno := syscall.Syscall(sysLandlockCreate, uintptr(unsafe.Pointer(&attr)), size, 0)
	if errno != 0 {
		return fmt.Errorf("landlock ruleset: %w", errno)
	}
	defer syscall.Close(int(fd))
	if err := allowTree(int(fd), "/", l.Hidden, attr.fs); err != nil {
		return err
	}
	for _, p := range l.Writable {
		if err := allow(int(fd), p, attr.fs); err != nil {
			return err
		}
	}
	return restrictSelf(fd)
}

// restrictSelf puts the calling thread into a new domain with these rules, and
// gives up new privileges where that takes it.
func restrictSelf(ruleset uintptr) error {
	_, _, errno := syscall.Syscall(sysLandlockRestrict, ruleset, 0, 0)
	if errno == syscall.EPERM {
		if err := rights.ThreadNoNewPrivs(); err != nil {
			return err
		}
		_, _, errno = syscall.Syscall(sysLandlockRestrict, ruleset, 0, 0)
	}
	if errno != 0 {
		return fmt.Errorf("landlock: %w", errno)
	}
	return nil
}

// allowTree allows everything below dir that is not hidden. A directory on the
// way to something hidden can be listed but not allowed as a whole, for a rule
// reaches all that is beneath.
func allowTree(ruleset int, dir string, hidden []string, access uint64) error {
	onTheWay := false
	for _, h := range hidden {
		if h == dir {
			return nil
		}
		if strings.HasPrefix(h, strings.TrimSuffix(dir, "/")+"/") {
			onTheWay = true
		}
	}
	if !onTheWay {
		return allow(ruleset, dir, access)
	}
	if dir == "/" {
		// Without this nobody could list "/". It shows names, never contents,
		// and file modes still decide.
		if err := allow(ruleset, dir, llReadDir); err != nil {
			return err
		}
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return fmt.Errorf("landlock: %w", err)
	}
	for _, e := range entries {
		if e.Type()&os.ModeSymlink != 0 {
			continue
		}
		if err := allowTree(ruleset, filepath.Join(dir, e.Name()), hidden, access); err != nil {
			return err
		}
	}
	return nil
}

func allow(ruleset int, path string, access uint64) error {
	const oPath = 0x200000
	fd, err := syscall.Open(path, oPath|syscall.O_CLOEXEC|syscall.O_NOFOLLOW, 0)
	if errors.Is(err, syscall.ENOENT) || errors.Is(err, syscall.EACCES) {
		return nil
	}
	if err != nil {
		return pathError("landlock", path, err)
	}
	defer syscall.Close(fd)
	var st syscall.Stat_t
	if err := syscall.Fstat(fd, &st); err != nil {
		return pathError("landlock", path, err)
	}
	if st.Mode&syscall.S_IFMT != syscall.S_IFDIR {
		access &= llFileOnly
	}
	rule := pathBeneath{access: access, fd: int32(fd)}
	if _, _, errno := syscall.Syscall6(sysLandlockAddRule, uintptr(ruleset), 1, uintptr(unsafe.Pointer(&rule)), 0, 0,
		0); errno != 0 {
		return pathError("landlock", path, errno)
	}
	return nil
}
