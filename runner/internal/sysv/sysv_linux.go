package sysv

import (
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"hermes-exec/runner/internal/bounded"
)

// Object is a System V object as the kernel lists it.
type Object struct {
	kind         kind
	id           int
	Owner, Maker uint32 // the maker may give an object to any other user
	// Removed: shared memory that was removed, and disappears when the processes that have it
	// attached end.
	Removed bool
}

func (o Object) String() string { return fmt.Sprintf("System V object %s %d", o.kind.name, o.id) }

// Remove removes the object; its owner and its maker may do so.
func (o Object) Remove() error {
	if errno := o.kind.remove(uintptr(o.id)); errno != 0 && errno != syscall.EINVAL && errno != syscall.EIDRM {
		return errno
	}
	return nil
}

type kind struct {
	name   string
	remove func(id uintptr) syscall.Errno
}

const (
	ipcRmid = 0
	shmDest = 0o1000 // of a mode: removed, and still attached
)

var kinds = []kind{
	{"shm", func(id uintptr) syscall.Errno { return control(syscall.SYS_SHMCTL, id, ipcRmid, 0) }},
	{"sem", func(id uintptr) syscall.Errno { return control(syscall.SYS_SEMCTL, id, 0, ipcRmid) }},
	{"msg", func(id uintptr) syscall.Errno { return control(syscall.SYS_MSGCTL, id, ipcRmid, 0) }},
}

func control(call, id, second, third uintptr) syscall.Errno {
	_, _, errno := syscall.RawSyscall(call, id, second, third)
	return errno
}

// Each calls do with all objects.
func Each(do func(Object)) error {
	for _, kind := range kinds {
		text, err := bounded.ReadWhole("/proc/sysvipc/"+kind.name, bounded.TableSize)
		if errors.Is(err, fs.ErrNotExist) {
			continue // a kernel without them
		}
		if err != nil {
			return err
		}
		head, rest, _ := strings.Cut(string(text), "\n")
		names := strings.Fields(head)
		const id = 1
		mode, owner, maker := slices.Index(names, "perms"), slices.Index(names, "uid"), slices.Index(names, "cuid")
		if min(mode, owner, maker) < 0 {
			return fmt.Errorf("/proc/sysvipc/%s has other columns than expected: %q", kind.name, names)
		}
		for line := range strings.Lines(rest) {
			f := strings.Fields(line)
			if len(f) <= max(id, mode, owner, maker) {
				continue
			}
			number := func(column, base int) uint64 {
				n, _ := strconv.ParseUint(f[column], base, 32)
				return n
			}
			do(Object{kind: kind, id: int(number(id, 10)), Owner: uint32(number(owner, 10)),
				Maker: uint32(number(maker, 10)), Removed: kind.name == "shm" && number(mode, 8)&shmDest != 0})
		}
	}
	return nil
}
