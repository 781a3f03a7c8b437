package room

import (
	"os"
	"strconv"
	"syscall"
	"time"

	"hermes-exec/runner/internal/pipe"
)

// heldTime bounds how long open files are looked through.
const heldTime = time.Second

// Held adds up the removed files that these processes still have open: they take
// room that no directory shows. Files in memory are none of them, and what the
// caller may not look into is left out.
func Held(pids []int) Use {
	type file struct{ device, number uint64 }
	var out Use
	seen, memory := map[file]bool{}, memoryDevices()
	until := time.Now().Add(heldTime)
	for _, pid := range pids {
		for _, fd := range openFiles(pid) {
			var s syscall.Stat_t
			if time.Now().After(until) || syscall.Stat(fd, &s) != nil {
				continue
			}
			this := file{uint64(s.Dev), s.Ino}
			if s.Mode&syscall.S_IFMT != syscall.S_IFREG || s.Nlink > 0 || memory[this.device] || seen[this] {
				continue
			}
			seen[this] = true
			out.Files++
			out.Bytes += s.Blocks * 512
		}
	}
	return out
}

// openFiles are paths that lead to what a process has open.
func openFiles(pid int) []string {
	path := "/proc/" + strconv.Itoa(pid) + "/fd/"
	dir, err := os.Open(path)
	if err != nil {
		return nil
	}
	defer dir.Close()
	names, _ := dir.Readdirnames(-1)
	for i := range names {
		names[i] = path + names[i]
	}
	return names
}

// memoryDevices are the file systems of memfd_create and of /dev/shm.
func memoryDevices() map[uint64]bool {
	out := map[uint64]bool{}
	var s syscall.Stat_t
	if syscall.Stat("/dev/shm", &s) == nil {
		out[uint64(s.Dev)] = true
	}
	if f, err := pipe.MemoryFile("held", ""); err == nil {
		if syscall.Fstat(int(f.Fd()), &s) == nil {
			out[uint64(s.Dev)] = true
		}
		_ = f.Close()
	}
	return out
}
