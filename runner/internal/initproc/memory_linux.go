package initproc

import (
	"bytes"
	"os"
	"strconv"
	"syscall"

	"hermes-exec/runner/internal/bounded"
)

// dropProgramPages drops the pages of this program, code and constants, from this process. The page
// cache holds them once for all processes that run the program, and they come back on use in 0.1
// ms.
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

// programRanges returns the parts in /proc/PID/maps that equal the file of a static program. A
// dynamically linked program has none: some of its parts were written while it was loaded, and look
// like the others now.
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

// resetPeak resets the record of this process's peak memory, which a child inherits from its
// parent. Only root may do it, because this process is not dumpable.
func resetPeak() { _ = os.WriteFile("/proc/self/clear_refs", []byte("5"), 0) }
