package slots

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"hermes-exec/runner/internal/isolate"
)

// sharedPlaces are directories of the box in which every user may leave files.
var sharedPlaces = []string{"/dev/shm", "/tmp", "/var/tmp", "/run/lock", "/dev/mqueue"}

// wipeShared removes what a slot with a uid of its own has left in places that
// it shares with others: files there, and System V IPC objects.
func (s *slot) wipeShared() []string {
	u := s.setup
	if u.Level == isolate.Box {
		return s.was.restore()
	}
	if u.View.Pids || !u.Switch || u.UID == 0 {
		return nil
	}
	w := newWiper(wipeBudget)
	for _, dir := range sharedPlaces {
		eachEntry(dir, func(path string, st *syscall.Stat_t) bool { return st.Uid == u.UID && w.wipe(path) })
	}
	removeIPC(u.UID)
	return w.problems
}

// removeIPC removes the System V objects of a uid: shared memory, semaphores
// and message queues outlive the processes that made them.
func removeIPC(uid uint32) {
	const ipcRmid = 0
	for _, kind := range []struct {
		file string
		call uintptr
		cmd  func(id uintptr) (a, b, c uintptr)
	}{
		{"shm", syscall.SYS_SHMCTL, func(id uintptr) (uintptr, uintptr, uintptr) { return id, ipcRmid, 0 }},
		{"sem", syscall.SYS_SEMCTL, func(id uintptr) (uintptr, uintptr, uintptr) { return id, 0, ipcRmid }},
		{"msg", syscall.SYS_MSGCTL, func(id uintptr) (uintptr, uintptr, uintptr) { return id, ipcRmid, 0 }},
	} {
		data, err := os.ReadFile("/proc/sysvipc/" + kind.file)
		if err != nil {
			continue
		}
		lines := strings.Split(string(data), "\n")
		column := indexOf(strings.Fields(lines[0]), "uid")
		for _, line := range lines[1:] {
			f := strings.Fields(line)
			if column < 0 || len(f) <= column || f[column] != strconv.FormatUint(uint64(uid), 10) {
				continue
			}
			if id, err := strconv.Atoi(f[1]); err == nil {
				a, b, c := kind.cmd(uintptr(id))
				_, _, _ = syscall.Syscall(kind.call, a, b, c)
			}
		}
	}
}

func indexOf(list []string, word string) int {
	for i, w := range list {
		if w == word {
			return i
		}
	}
	return -1
}

// eachEntry is eachName with the status of each.
func eachEntry(dir string, do func(path string, st *syscall.Stat_t) (removed bool)) {
	f, err := os.Open(dir)
	if err != nil {
		return
	}
	defer f.Close()
	eachName(f, func(name string) bool {
		var st syscall.Stat_t
		path := filepath.Join(dir, name)
		return syscall.Lstat(path, &st) == nil && do(path, &st)
	})
}
