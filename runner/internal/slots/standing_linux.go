package slots

import (
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"hermes-exec/runner/internal/proc"
)

// standing is what the next tenant's processes inherit of this one, and what
// root in a whole box can change of it from outside: limits, processors,
// scheduling and what a core dump holds. The same text is the same state.
func standing() string {
	state := []string{slurpFile("/proc/self/limits"), slurpFile("/proc/self/coredump_filter"),
		slurpFile("/proc/self/autogroup")}
	tasks, _ := os.ReadDir("/proc/self/task")
	threads := make([]string, 0, len(tasks))
	for _, task := range tasks {
		if tid, err := strconv.Atoi(task.Name()); err == nil {
			threads = append(threads, thread(tid))
		}
	}
	threads = slices.DeleteFunc(threads, func(state string) bool { return state == "" })
	slices.Sort(threads)
	return strings.Join(append(state, slices.Compact(threads)...), "\n")
}

// thread is the standing of one thread, "" of one that has ended.
func thread(tid int) string {
	const (
		ioprioGet     = 1 // IOPRIO_WHO_PROCESS
		niceField     = 19
		realtimeField = 40
	)
	path := "/proc/self/task/" + strconv.Itoa(tid) + "/"
	f := proc.Fields([]byte(slurpFile(path + "stat")))
	if len(f) < realtimeField-1 {
		return ""
	}
	state := []string{"nice " + string(f[niceField-3]), "priority " + string(f[realtimeField-3]), "policy " +
		string(f[realtimeField-2])}
	for line := range strings.Lines(slurpFile(path + "status")) {
		if strings.HasPrefix(line, "Cpus_allowed:") || strings.HasPrefix(line, "Mems_allowed:") {
			state = append(state, strings.TrimSpace(line))
		}
	}
	io, _, _ := syscall.RawSyscall(syscall.SYS_IOPRIO_GET, ioprioGet, uintptr(tid), 0)
	return strings.Join(append(state, "io "+strconv.Itoa(int(io))), ", ")
}

// attributes are the extended attributes of a folder or file, which ACLs are
// too.
func attributes(path string) string {
	names := xattr(func(buffer []byte) (int, error) { return syscall.Listxattr(path, buffer) })
	var out strings.Builder
	for name := range strings.SplitSeq(strings.TrimSuffix(string(names), "\x00"), "\x00") {
		if name != "" {
			value := xattr(func(buffer []byte) (int, error) { return syscall.Getxattr(path, name, buffer) })
			out.WriteString(strconv.Quote(name) + "=" + strconv.Quote(string(value)) + "\n")
		}
	}
	return out.String()
}

// xattr reads what first tells how long it is.
func xattr(read func(buffer []byte) (int, error)) []byte {
	for range 10 {
		size, err := read(nil)
		if err != nil || size == 0 {
			return nil
		}
		buffer := make([]byte, size)
		if size, err = read(buffer); err == nil {
			return buffer[:size]
		}
	}
	return nil
}
