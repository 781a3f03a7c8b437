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

// Key tells a process from another that got its number later.
type Key struct {
	pid   int
	start uint64
}

// Key of this one.
func (p Process) Key() Key { return Key{p.PID, p.Start} }

// Read reads as much of a file as there is room for.
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
		// Files of /proc give all that there is room for.
		if n += m; n < len(buf) {
			break
		}
	}
	return buf[:n]
}

// Numbers are the processes that /proc shows, zombies too, as its entries are named.
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

// Fields are those of /proc/PID/stat, or of a task's, from the third on. The name
// before them may hold anything, so they are counted from the last parenthesis.
func Fields(stat []byte) [][]byte {
	end := bytes.LastIndexByte(stat, ')')
	if end < 0 {
		return nil
	}
	return bytes.Fields(stat[end+1:])
}

// ParseStat reads /proc/PID/stat; false for a process that has ended.
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

// ParseStatus takes users and groups from /proc/PID/status; false when it names none.
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

// Lineage is p and its ancestors that are visible, the nearest first.
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

// Root is the topmost ancestor of p that is visible.
func Root(all map[int]Process, p Process) int {
	top := p.PID
	for each := range Lineage(all, p) {
		top = each.PID
	}
	return top
}

// IsDescendant says whether from is an ancestor of p.
func IsDescendant(all map[int]Process, p Process, from int) bool {
	for each := range Lineage(all, p) {
		if each.Parent == from {
			return true
		}
	}
	return false
}

// mostArgv is how much is read of a process's arguments. A process can have
// any amount, also by prctl(PR_SET_MM), which needs no rights.
const maxArgv = 64 << 10

// Argv is what the process shows; a tenant can make it anything. One that shows
// nothing, as in the middle of an exec, has its short name in brackets, as ps
// has it.
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

// maxEnviron is how much is searched of an environment. The kernel takes 6 MiB
// from execve, and any size from prctl(PR_SET_MM).
const maxEnviron = 1 << 20

// Environ looks in the environment that a process was started with for an entry
// that begins with prefix and whose rest is accepted. Only the beginning of a large
// environment is searched: a later entry is not found, as if it were not there.
func Environ(pid int, prefix string, accept func(value string) bool) bool {
	file, err := bounded.Open("/proc/" + strconv.Itoa(pid) + "/environ")
	if err != nil {
		return false
	}
	defer file.Close()
	return findEntry(io.LimitReader(file, maxEnviron), prefix, accept)
}

// findEntry searches entries that end with a NUL, of which it keeps a part at a time.
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

// OwnMemory is what a process has resident and does not share.
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

// Mount is one line of mountinfo: what is mounted where, of which root of its
// file system, with the options of the mount and those of the file system.
type Mount struct{ Root, Path, Options, Kind, Super string }

// Mounts lists the mounts that this process sees, those that cover others last.
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

// Unescape undoes what mountinfo does to odd characters in a path.
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
