package agent

import (
	"bytes"
	"iter"
	"os"
	"strconv"
	"strings"
	"syscall"

	"hermes-exec/runner/internal/isolation"
)

// proc is one living process as /proc shows it.
type proc struct {
	pid, parent, group, session int
	state                       byte
	start                       uint64
	rssPages, threads           int64
	uids                        [3]uint32 // real, effective, saved
	groups                      []uint32
	kernel                      bool // a thread of the kernel
}

// key tells a process from another that got its number later.
type key struct {
	pid   int
	start uint64
}

func (p proc) key() key { return key{p.pid, p.start} }

// snapshot lists the living processes that /proc shows, without zombies. Of
// those that are older than any tenant only the ancestry is of interest.
func (a *agent) snapshot() (map[int]proc, error) {
	dir, err := os.Open("/proc")
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	names, err := dir.Readdirnames(-1)
	if err != nil {
		return nil, err
	}
	credentials := a.setup.Switch || a.setup.Track.Count > 0
	out := make(map[int]proc, len(names))
	buf := make([]byte, 8192)
	for _, name := range names {
		if name[0] < '0' || name[0] > '9' {
			continue
		}
		p, ok := parseStat(slurp("/proc/"+name+"/stat", buf))
		if !ok || p.kernel {
			continue
		}
		if credentials && p.start >= a.setup.Since && !p.parseStatus(slurp("/proc/"+name+"/status", buf)) {
			continue
		}
		out[p.pid] = p
	}
	return out, nil
}

func slurp(path string, buf []byte) []byte {
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

// parseStat reads /proc/PID/stat. The name in it may hold anything, so fields
// are counted from the last parenthesis.
func parseStat(data []byte) (proc, bool) {
	open, end := bytes.IndexByte(data, ' '), bytes.LastIndexByte(data, ')')
	if open < 0 || end < 0 {
		return proc{}, false
	}
	f := bytes.Fields(data[end+1:])
	if len(f) < 22 {
		return proc{}, false
	}
	n := func(i int) int { v, _ := strconv.Atoi(string(f[i])); return v }
	p := proc{state: f[0][0], parent: n(1), group: n(2), session: n(3), rssPages: int64(n(21)), threads: int64(n(17))}
	const kernelThread = 0x00200000
	p.kernel = n(6)&kernelThread != 0
	p.pid, _ = strconv.Atoi(string(data[:open]))
	p.start, _ = strconv.ParseUint(string(f[19]), 10, 64)
	// The first thread of a process may have ended before the others.
	if p.state == 'X' || p.state == 'x' || p.state == 'Z' && p.threads <= 1 {
		return proc{}, false
	}
	return p, true
}

func (p *proc) parseStatus(data []byte) bool {
	found := false
	for _, line := range strings.Split(string(data), "\n") {
		switch {
		case strings.HasPrefix(line, "Uid:"):
			f := strings.Fields(line[4:])
			for i := range p.uids {
				if i < len(f) {
					v, _ := strconv.ParseUint(f[i], 10, 32)
					p.uids[i] = uint32(v)
					found = true
				}
			}
		case strings.HasPrefix(line, "Groups:"):
			for _, g := range strings.Fields(line[7:]) {
				v, _ := strconv.ParseUint(g, 10, 32)
				p.groups = append(p.groups, uint32(v))
			}
			return found
		}
	}
	return found
}

// tenants keeps those processes of all that belong to the slot.
func (a *agent) tenants(all map[int]proc) map[int]proc {
	s := a.setup
	out := make(map[int]proc, len(all))
	self := os.Getpid()
	switch {
	case s.View.Pids:
		for pid, p := range all {
			if pid != 1 {
				out[pid] = p
			}
		}
	case s.Level == isolation.Box:
		a.boxTenants(all, out)
	case s.Switch:
		for pid, p := range all {
			if pid != self && p.start >= s.Since && (p.uids[0] == s.UID || p.uids[1] == s.UID || p.uids[2] == s.UID) {
				out[pid] = p
			}
		}
	default:
		for pid, p := range all {
			if pid != self && p.start >= s.Since && (descends(all, p, self) || a.marked(pid)) {
				out[pid] = p
			}
		}
	}
	return out
}

// boxTenants: in a whole box all that started after the runner is the
// tenant's, save the runner, its ancestors and what came in from outside (a
// process whose parent is in another pid namespace shows parent 0).
func (a *agent) boxTenants(all, out map[int]proc) {
	serve, known := all[a.setup.ServePID]
	ours := map[int]bool{os.Getpid(): true, 1: true}
	for p, ok := serve, known; ok && !ours[p.pid]; p, ok = all[p.parent] {
		ours[p.pid] = true
	}
	if known {
		ours[serve.pid] = true
	}
	for pid, p := range all {
		if ours[pid] || p.start < a.setup.Since {
			continue
		}
		if from := root(all, p); from != 1 && from != serve.pid && all[from].parent == 0 && !a.tracked(p) {
			continue
		}
		out[pid] = p
	}
}

// lineage is p and its ancestors that are visible, the nearest first.
func lineage(all map[int]proc, p proc) iter.Seq[proc] {
	return func(yield func(proc) bool) {
		for range len(all) + 1 {
			if !yield(p) {
				return
			}
			parent, alive := all[p.parent]
			if !alive {
				return
			}
			p = parent
		}
	}
}

// root is the topmost ancestor of p that is visible.
func root(all map[int]proc, p proc) int {
	top := p.pid
	for each := range lineage(all, p) {
		top = each.pid
	}
	return top
}

func descends(all map[int]proc, p proc, from int) bool {
	for each := range lineage(all, p) {
		if each.parent == from {
			return true
		}
	}
	return false
}

func (a *agent) tracked(p proc) bool {
	t := a.setup.Track
	for _, g := range p.groups {
		if t.Count > 0 && g >= t.First && g-t.First < t.Count {
			return true
		}
	}
	return false
}

// marked says whether a process carries this runner's marker in the environment
// that it was started with.
func (a *agent) marked(pid int) bool {
	_, ok := a.markedToken(pid)
	return ok
}

func (a *agent) markedToken(pid int) (uint64, bool) {
	data, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/environ")
	if err != nil {
		return 0, false
	}
	return tokenIn(data, a.setup.Boot+"."+a.setup.Slot)
}

// tokenIn finds the mark of a command of this slot in an environment.
func tokenIn(environ []byte, slot string) (uint64, bool) {
	for _, entry := range bytes.Split(environ, []byte{0}) {
		value, ok := bytes.CutPrefix(entry, []byte(marker))
		if !ok {
			continue
		}
		number, boot, ok := strings.Cut(string(value), ".")
		if !ok || boot != slot {
			continue
		}
		if token, err := strconv.ParseUint(number, 10, 64); err == nil {
			return token, true
		}
	}
	return 0, false
}
