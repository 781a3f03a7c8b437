// Package sysv removes System V objects: shared memory, semaphores and message
// queues outlive the processes that made them.
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

// Remove removes the objects of a uid. It does so with the rights that as gives,
// since root in a container may have no right to. The problems are what is left.
func Remove(uid uint32, as func(do func() error) error) (problems []string) {
	err := as(func() error {
		return each(uid, func(kind kind, id int) { kind.remove(uintptr(id)) })
	})
	unread := each(uid, func(kind kind, id int) {
		problems = append(problems, fmt.Sprintf("System V object %s %d cannot be removed (%v)", kind.name, id, err))
	})
	if unread != nil {
		problems = append(problems, unread.Error())
	}
	return problems
}

type kind struct {
	name   string
	remove func(id uintptr)
}

const ipcRmid = 0

var kinds = []kind{
	{"shm", func(id uintptr) { _, _, _ = syscall.RawSyscall(syscall.SYS_SHMCTL, id, ipcRmid, 0) }},
	{"sem", func(id uintptr) { _, _, _ = syscall.RawSyscall(syscall.SYS_SEMCTL, id, 0, ipcRmid) }},
	{"msg", func(id uintptr) { _, _, _ = syscall.RawSyscall(syscall.SYS_MSGCTL, id, ipcRmid, 0) }},
}

// each visits the objects that a uid has made or owns.
func each(uid uint32, do func(kind kind, id int)) error {
	want := strconv.FormatUint(uint64(uid), 10)
	for _, kind := range kinds {
		text, err := bounded.ReadWhole("/proc/sysvipc/"+kind.name, bounded.Table)
		if errors.Is(err, fs.ErrNotExist) {
			continue // a kernel without them
		}
		if err != nil {
			return err
		}
		head, rest, _ := strings.Cut(string(text), "\n")
		// The first two columns are key and id.
		names := strings.Fields(head)
		owner, maker := slices.Index(names, "uid"), slices.Index(names, "cuid")
		for line := range strings.Lines(rest) {
			f := strings.Fields(line)
			if owner < 0 || maker < 0 || len(f) <= max(1, owner, maker) || f[owner] != want && f[maker] != want {
				continue
			}
			if id, err := strconv.Atoi(f[1]); err == nil {
				do(kind, id)
			}
		}
	}
	return nil
}
