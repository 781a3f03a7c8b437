package initproc

import (
	"bytes"
	"os"
	"strconv"
	"syscall"

	"hermes-exec/runner/internal/bounded"
)

// dropProgramPages takes the pages of this program itself, code and constants,
// out of this process: they are in the page cache once for all processes that
// run it, and come back as they are used, in a tenth of a millisecond.
func dropProgramPages() {
	maps, err := bounded.ReadWhole("/proc/self/maps", bounded.TableSize)
	if err != nil {
		return
	}
	for _, part := range programRanges(maps) {
		_, _, _ = syscall.RawSyscall(syscall.SYS_MADVISE, part.start, part.size, syscall.MADV_DONTNEED)
	}
}

type memoryRange struct{ start, size uintptr }

// programRanges finds in /proc/PID/maps the parts of a static program that are just
// what its file has. A dynamically linked program has none: some of its parts
// were written while it was loaded, and look like the others now.
func programRanges(maps []byte) []memoryRange {
	var parts []memoryRange
	program := ""
	for line := range bytes.Lines(maps) {
		f := bytes.Fields(line) // start-end mode offset device inode path
		if len(f) < 6 || string(f[4]) == "0" {
			continue
		}
		if program == "" {
			program = string(f[4])
		}
		if string(f[4]) != program {
			return nil
		}
		if mode := string(f[1]); mode != "r--p" && mode != "r-xp" {
			continue
		}
		from, to, _ := bytes.Cut(f[0], []byte("-"))
		start, err := strconv.ParseUint(string(from), 16, 64)
		if err != nil {
			return nil
		}
		end, err := strconv.ParseUint(string(to), 16, 64)
		if err != nil || end < start {
			return nil
		}
		parts = append(parts, memoryRange{uintptr(start), uintptr(end - start)})
	}
	return parts
}

// resetPeak lowers the record of how much memory this process has had to what
// it has now: a child begins with its parent's. Only root may, for this process
// is not dumpable.
func resetPeak() { _ = os.WriteFile("/proc/self/clear_refs", []byte("5"), 0) }
