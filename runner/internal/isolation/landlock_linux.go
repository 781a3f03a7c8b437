package isolation

import (
	"fmt"
	"os"
	"runtime"
	"syscall"
	"unsafe"

	"hermes-exec/runner/internal/rights"
)

// System calls with the same number on every architecture that package syscall lacks.
const (
	sysLandlockCreate   = 444
	sysLandlockRestrict = 446
)

const (
	llScopeAbstract = 1
	llScopeSignal   = 2
)

type rulesetAttr struct{ fs, net, scoped uint64 }

// LandlockABI returns the version of Landlock that this kernel offers, 0 for none.
func LandlockABI() int {
	v, _, errno := syscall.Syscall(sysLandlockCreate, 0, 0, 1)
	if errno != 0 {
		return 0
	}
	return int(v)
}

// ScopeArg makes `runner agent ScopeArg` an agent in a Landlock domain of its own, which neither
// abstract sockets nor signals leave.
const ScopeArg = "--scope"

// CanScope reports whether the kernel has such domains.
func CanScope(abi int) bool { return abi >= 6 }

// Scope executes another program in a new domain, or returns an error. Each thread that restricts
// itself would be in a domain of its own; a program has one thread after its exec.
func Scope(argv []string) error {
	runtime.LockOSThread()
	attr := rulesetAttr{scoped: llScopeAbstract | llScopeSignal}
	fd, _, errno := syscall.Syscall(sysLandlockCreate, uintptr(unsafe.Pointer(&attr)), unsafe.Sizeof(attr), 0)
	if errno != 0 {
		return fmt.Errorf("landlock ruleset: %w", errno)
	}
	defer syscall.Close(int(fd))
	syscall.CloseOnExec(int(fd))
	_, _, errno = syscall.Syscall(sysLandlockRestrict, fd, 0, 0)
	if errno == syscall.EPERM { // without CAP_SYS_ADMIN it needs no_new_privs
		if err := rights.ThreadNoNewPrivs(); err != nil {
			return err
		}
		_, _, errno = syscall.Syscall(sysLandlockRestrict, fd, 0, 0)
	}
	if errno != 0 {
		return fmt.Errorf("landlock: %w", errno)
	}
	return syscall.Exec(SelfExe, argv, os.Environ())
}
