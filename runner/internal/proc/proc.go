package proc

import (
	"bufio"
	"bytes"
	"io"
	"iter"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"hermes-exec/runner/internal/bounded"
	"hermes-exec/runner/internal/ipc"
)

// Process is one living process as /proc shows it.
type Process struct {
	PID, Parent, Group, Session int
	State                       byte
	Start                       uint64 // in clock ticks after boot
	RSSPages, Threads           int64
	UIDs                        [3]uint32 // real, effective, saved
	Groups                      []uint32
	Kernel                      bool // a thread of the kernel
}

// Key distinguishes a process from a later process with the same pid.
type Key struct {
	pid   int
	start uint64
}

// Key returns the key of the process.
func (p Process) Key() Key { return Key{p.PID, p.Start} }

// Read reads as much of a file as fits into buf.
func Read(path string, buf []byte) []byte {
	fd, err := syscall.Open(path, syscall.O_RDONLY|syscall.O_CLOEXEC, 0)
	if err != nil {
		return nil
	}
	defer syscall.Close(fd)
	n := 0
	for n < len(buf) {
		m, err := syscall.Read(fd, buf[n:])
		if m <= 0 || err != nil {
			break
		}
		// Files of /proc fill the buffer at the first read.
		if n += m; n < len(buf) {
			break
		}
	}
	return buf[:n]
}

// Numbers returns the names of the processes in /proc, including zombies.
func Numbers() ([]string, error) {
	dir, err := os.Open("/proc")
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	names, err := dir.Readdirnames(-1)
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(names, func(name string) bool { return name[0] < '0' || name[0] > '9' }), nil
}

// Fields returns the fields of /proc/PID/stat, or of a task's, from the third on. The name before
// them may contain anything, so they begin after the last parenthesis.
func Fields(stat []byte) [][]byte {
	end := bytes.LastIndexByte(stat, ')')
	if end < 0 {
		return nil
	}
	return bytes.Fields(stat[end+1:])
}

// ParseStat parses /proc/PID/stat; it returns false for a process that has ended.
func ParseStat(data []byte) (Process, bool) {
	open, f := bytes.IndexByte(data, ' '), Fields(data)
	if open < 0 || len(f) < 22 {
		return Process{}, false
	}
	n := func(i int) int { v, _ := strconv.Atoi(string(f[i])); return v }
	p := Process{State: f[0][0], Parent: n(1), Group: n(2), Session: n(3), RSSPages: int64(n(21)),
		Threads: int64(n(17))}
	const kernelThread = 0x00200000
	p.Kernel = n(6)&kernelThread != 0
	p.PID, _ = strconv.Atoi(string(data[:open]))
	p.Start, _ = strconv.ParseUint(string(f[19]), 10, 64)
	// The first thread of a process may have ended before the others.
	if p.State == 'X' || p.State == 'x' || p.State == 'Z' && p.Threads <= 1 {
		return Process{}, false
	}
	return p, true
}

// ParseStatus parses the users and groups in /proc/PID/status; it returns false if there are none.
func (p *Process) ParseStatus(data []byte) bool {
	hasUsers := false
	for _, line := range strings.Split(string(data), "\n") {
		switch {
		case strings.HasPrefix(line, "Uid:"):
			f := strings.Fields(line[4:])
			for i := range p.UIDs {
				if i < len(f) {
					v, _ := strconv.ParseUint(f[i], 10, 32)
					p.UIDs[i] = uint32(v)
					hasUsers = true
				}
			}
		case strings.HasPrefix(line, "Groups:"):
			for _, g := range strings.Fields(line[7:]) {
				v, _ := strconv.ParseUint(g, 10, 32)
				p.Groups = append(p.Groups, uint32(v))
			}
			return hasUsers
		}
	}
	return hasUsers
}

// Lineage yields p and its visible ancestors, the nearest first.
func Lineage(all map[int]Process, p Process) iter.Seq[Process] {
	return func(yield func(Process) bool) {
		for range len(all) + 1 {
			if !yield(p) {
				return
			}
			parent, alive := all[p.Parent]
			if !alive {
				return
			}
			p = parent
		}
	}
}

// Root returns the topmost visible ancestor of p.
func Root(all map[int]Process, p Process) int {
	top := p.PID
	for each := range Lineage(all, p) {
		top = each.PID
	}
	return top
}

// IsDescendant reports whether from is an ancestor of p.
func IsDescendant(all map[int]Process, p Process, from int) bool {
	for each := range Lineage(all, p) {
		if each.Parent == from {
			return true
		}
	}
	return false
}

// maxArgv bounds how much of a process's arguments is read. A process can have any amount, also by
// prctl(PR_SET_MM), which needs no rights.
const maxArgv = 64 << 10

// Argv returns the arguments of a process; a tenant can make them anything. A process without
// arguments, as in the middle of an exec, gets its short name in brackets, as in ps.
func Argv(pid int) []ipc.Bytes {
	data, _, err := bounded.ReadFile("/proc/"+strconv.Itoa(pid)+"/cmdline", maxArgv)
	if err != nil {
		return []ipc.Bytes{}
	}
	if len(data) == 0 {
		var buf [64]byte
		return []ipc.Bytes{ipc.Bytes("[" + strings.TrimSuffix(string(Read("/proc/"+strconv.Itoa(pid)+"/comm", buf[:])),
			"\n") + "]")}
	}
	out := []ipc.Bytes{}
	for _, part := range bytes.Split(bytes.TrimSuffix(data, []byte{0}), []byte{0}) {
		out = append(out, ipc.Bytes(part))
	}
	return out
}

// maxEnviron bounds how much of an environment is searched. The kernel accepts 6 MiB from execve,
// and any size from prctl(PR_SET_MM).
const maxEnviron = 1 << 20

// Environ searches the initial environment of a process for an entry that begins with prefix and
// whose rest accept accepts. It searches the first maxEnviron bytes only.
func Environ(pid int, prefix string, accept func(value string) bool) bool {
	file, err := bounded.Open("/proc/" + strconv.Itoa(pid) + "/environ")
	if err != nil {
		return false
	}
	defer file.Close()
	return findEntry(io.LimitReader(file, maxEnviron), prefix, accept)
}

// findEntry searches entries that end with a NUL. It holds one part of them at a time.
func findEntry(r io.Reader, prefix string, accept func(value string) bool) bool {
	parts := bufio.NewReaderSize(r, 16<<10)
	for inside := false; ; {
		part, err := parts.ReadSlice(0)
		value, ok := bytes.CutPrefix(bytes.TrimSuffix(part, []byte{0}), []byte(prefix))
		if ok && !inside && accept(string(value)) {
			return true
		}
		if inside = err == bufio.ErrBufferFull; err != nil && !inside {
			return false
		}
	}
}

// OwnMemory returns the resident memory of a process that is not shared.
func OwnMemory(pid int) int64 {
	var buf [256]byte
	f := bytes.Fields(Read("/proc/"+strconv.Itoa(pid)+"/statm", buf[:]))
	if len(f) < 3 {
		return 0
	}
	resident, err1 := strconv.ParseInt(string(f[1]), 10, 64)
	shared, err2 := strconv.ParseInt(string(f[2]), 10, 64)
	if err1 != nil || err2 != nil {
		return 0
	}
	return (resident - shared) * int64(os.Getpagesize())
}

// Mount is one line of mountinfo: the root within its file system, the path, the options of the
// mount, the type and the options of the file system.
type Mount struct{ Root, Path, Options, Kind, Super string }

// Mounts lists the mounts that this process sees; mounts that cover others come last.
func Mounts() ([]Mount, error) {
	table, err := bounded.ReadWhole("/proc/self/mountinfo", bounded.TableSize)
	if err != nil {
		return nil, err
	}
	var out []Mount
	for line := range strings.Lines(string(table)) {
		head, tail, ok := strings.Cut(line, " - ")
		first, last := strings.Fields(head), strings.Fields(tail)
		if ok && len(first) >= 6 && len(last) >= 3 {
			out = append(out, Mount{Root: first[3], Path: Unescape(first[4]), Options: first[5], Kind: last[0],
				Super: last[2]})
		}
	}
	return out, nil
}

// Unescape decodes the escapes of a path in mountinfo.
func Unescape(s string) string {
	if !strings.Contains(s, `\`) {
		return s
	}
	var out strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] == '\\' && i+3 < len(s) {
			if n, err := strconv.ParseUint(s[i+1:i+4], 8, 8); err == nil {
				out.WriteByte(byte(n))
				i += 3
				continue
			}
		}
		out.WriteByte(s[i])
	}
	return out.String()
}
