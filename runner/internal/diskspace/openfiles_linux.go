package diskspace

import (
	"strconv"
	"syscall"
	"time"

	"hermes-exec/runner/internal/bounded"
	"hermes-exec/runner/internal/pipe"
)

// scanTimeout bounds the scan of open files.
const scanTimeout = time.Second

// MeasureOpenFiles adds up the removed files that these processes have open: they take space that
// no directory shows. Files in memory do not count, and processes that the caller may not look into
// are left out.
func MeasureOpenFiles(pids []int) Usage {
	type file struct{ device, number uint64 }
	var out Usage
	seen, memory := map[file]bool{}, memoryDevices()
	until := time.Now().Add(scanTimeout)
	for _, pid := range pids {
		open := "/proc/" + strconv.Itoa(pid) + "/fd"
		_ = bounded.EachName(open, func(fd string) bool {
			var s syscall.Stat_t
			if syscall.Stat(open+"/"+fd, &s) != nil {
				return true
			}
			this := file{uint64(s.Dev), s.Ino}
			if s.Mode&syscall.S_IFMT == syscall.S_IFREG && s.Nlink == 0 && !memory[this.device] && !seen[this] {
				seen[this] = true
				out.Files++
				out.Bytes += s.Blocks * 512
			}
			return time.Now().Before(until)
		})
	}
	return out
}

// memoryDevices returns the file systems of memfd_create and of /dev/shm.
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
