package isolation

import (
	"encoding/json"
	"errors"
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
	sysLandlockAdd      = 445
	sysLandlockRestrict = 446
)

const (
	llScopeAbstract = 1
	llScopeSignal   = 2
)

// Rights of a Landlock rule on files, of version 3. Only the first three and llTruncate apply to a
// file that is not a directory.
const (
	llExecute   = 1 << 0
	llWrite     = 1 << 1
	llRead      = 1 << 2
	llReadDir   = 1 << 3
	llMakeChar  = 1 << 6
	llMakeBlock = 1 << 11
	llTruncate  = 1 << 14
	llAll       = 1<<15 - 1
	llOfFiles   = llExecute | llWrite | llRead | llTruncate

	llReadOnly = llExecute | llRead | llReadDir
	llDevice   = llRead | llWrite | llReadDir | llTruncate
	llOwn      = llAll &^ (llMakeChar | llMakeBlock)
)

// confineABI is the version of Landlock that also keeps programs from truncating files (Linux 6.2).
const confineABI = 3

type rulesetAttr struct{ fs, net, scoped uint64 }

// LandlockABI returns the version of Landlock that this kernel offers, 0 for none.
func LandlockABI() int {
	v, _, errno := syscall.Syscall(sysLandlockCreate, 0, 0, 1)
	if errno != 0 {
		return 0
	}
	return int(v)
}

// ScopeArg makes `runner agent ScopeArg DOMAIN` an agent in a Landlock domain of its own. DOMAIN is
// a Domain in JSON.
const ScopeArg = "--scope"

// CanScope reports whether the kernel has domains that neither abstract sockets nor signals leave.
func CanScope(abi int) bool { return abi >= 6 }

// Scope executes another program in a new domain, or returns an error. Each thread that restricts
// itself would be in a domain of its own; a program has one thread after its exec.
func Scope(domain string, argv []string) error {
	var d Domain
	if err := json.Unmarshal([]byte(domain), &d); err != nil {
		return err
	}
	runtime.LockOSThread()
	if err := d.enter(); err != nil {
		return err
	}
	return syscall.Exec(SelfExe, argv, os.Environ())
}

// enter restricts the calling thread and the programs that it executes.
func (d Domain) enter() error {
	attr := rulesetAttr{}
	if d.Scoped {
		attr.scoped = llScopeAbstract | llScopeSignal
	}
	size := unsafe.Sizeof(attr)
	if d.Files != nil {
		attr.fs = llAll
		if !d.Scoped { // kernels before version 6 know no scopes
			size = unsafe.Sizeof(attr.fs)
		}
	}
	fd, _, errno := syscall.Syscall(sysLandlockCreate, uintptr(unsafe.Pointer(&attr)), size, 0)
	if errno != 0 {
		return fmt.Errorf("landlock ruleset: %w", errno)
	}
	defer syscall.Close(int(fd))
	syscall.CloseOnExec(int(fd))
	if d.Files != nil {
		if err := d.Files.addTo(int(fd)); err != nil {
			return err
		}
	}
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
	return nil
}

// addTo adds the rules for all files to a ruleset. A path that does not exist gets no rule.
func (f Files) addTo(ruleset int) error {
	for _, rule := range []struct {
		access uint64
		paths  []string
	}{{llReadOnly, append(f.Read, SelfExe)}, {llDevice, f.Device}, {llOwn, f.Own}} {
		for _, path := range rule.paths {
			if err := addRule(ruleset, rule.access, path); err != nil {
				return err
			}
		}
	}
	return nil
}

func addRule(ruleset int, access uint64, path string) error {
	const oPath = 0x200000
	fd, err := syscall.Open(path, oPath|syscall.O_CLOEXEC, 0)
	switch {
	case errors.Is(err, syscall.ENOENT), errors.Is(err, syscall.EACCES):
		return nil
	case err != nil:
		return fmt.Errorf("landlock rule for %s: %w", path, err)
	}
	defer syscall.Close(fd)
	var st syscall.Stat_t
	if err := syscall.Fstat(fd, &st); err != nil {
		return fmt.Errorf("landlock rule for %s: %w", path, err)
	}
	if st.Mode&syscall.S_IFMT != syscall.S_IFDIR {
		access &= llOfFiles
	}
	attr := struct { // packed: the descriptor follows the rights at once
		access uint64
		parent int32
	}{access, int32(fd)}
	const pathBeneath = 1
	if _, _, errno := syscall.Syscall6(sysLandlockAdd, uintptr(ruleset), pathBeneath,
		uintptr(unsafe.Pointer(&attr)), 0, 0, 0); errno != 0 {
		return fmt.Errorf("landlock rule for %s: %w", path, errno)
	}
	return nil
}

// probeLandlock confines a thread for a moment, and checks that it cannot read a directory then.
func probeLandlock(abi int) error {
	if abi < confineABI {
		return fmt.Errorf("version %d of Landlock (Linux 6.2) is needed, and the kernel has %d", confineABI, abi)
	}
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with this goroutine
		done <- tryConfine()
	}()
	return <-done
}

func tryConfine() error {
	if err := (Domain{Files: &Files{}}).enter(); err != nil {
		return err
	}
	fd, err := syscall.Open("/", syscall.O_RDONLY|syscall.O_DIRECTORY|syscall.O_CLOEXEC, 0)
	if err == nil {
		syscall.Close(fd)
		return errors.New("landlock: a confined thread can read /")
	}
	if !errors.Is(err, syscall.EACCES) {
		return fmt.Errorf("landlock: %w", err)
	}
	return nil
}
