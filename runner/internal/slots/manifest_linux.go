package slots

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"hermes-exec/runner/internal/wipe"
)

// manifest is what a whole box had in its shared places, and in those that no
// engine compares with the image, before its tenant came. Changes elsewhere in
// the image are found by the driver, which can ask the engine.
type manifest struct {
	entries map[string]entry
	unseen  map[string]node
	home    string // of the runner, with all that it has in this box
	slot    string // the slot's own directory
	mounts  string
	ipc     string
	runner  string // its standing
}

// node is what may not change of a file, folder or device.
type node struct {
	inode, rdev    uint64
	mode, uid, gid uint32
	changed        syscall.Timespec // of regular files
	attributes     string
}

type entry struct {
	inode   uint64
	changed syscall.Timespec
}

// entryAt is how a path is now; the zero entry where there is nothing.
func entryAt(path string) entry {
	var st syscall.Stat_t
	if err := syscall.Lstat(path, &st); err != nil {
		return entry{}
	}
	return entry{st.Ino, st.Ctim}
}

// newManifest looks at the shared places themselves, not below.
func newManifest(home, slot string) manifest {
	m := manifest{
		entries: map[string]entry{}, unseen: map[string]node{}, home: home, slot: slot,
		mounts: slurpFile("/proc/self/mountinfo"), ipc: ipcObjects(), runner: standing(),
	}
	m.eachUnseen(func(path string, n node) bool {
		m.unseen[path] = n
		return true
	})
	eachShared(func(path string, e entry) bool {
		m.entries[path] = e
		return false
	})
	return m
}

// eachUnseen visits what engines do not compare with the image: devices,
// cgroups, and the runner's own files, without what is in the slot and in
// shared places, which is removed. It ends when do returns false.
func (m manifest) eachUnseen(do func(path string, n node) (more bool)) {
	var visit func(path string, device uint64) bool
	visit = func(path string, device uint64) bool {
		var st syscall.Stat_t
		if err := syscall.Lstat(path, &st); err != nil {
			return true
		}
		n := node{inode: st.Ino, rdev: st.Rdev, mode: st.Mode, uid: st.Uid, gid: st.Gid}
		if st.Mode&syscall.S_IFMT == syscall.S_IFREG {
			n.changed = st.Ctim
		} else if st.Mode&syscall.S_IFMT != syscall.S_IFLNK {
			n.attributes = attributes(path)
		}
		if !do(path, n) {
			return false
		}
		if st.Mode&syscall.S_IFMT != syscall.S_IFDIR || path == m.slot || path == terminals ||
			slices.Contains(sharedPlaces, path) ||
			st.Dev != device && readOnly(path) {
			return true
		}
		entries, _ := os.ReadDir(path)
		for _, entry := range entries {
			if !visit(filepath.Join(path, entry.Name()), st.Dev) {
				return false
			}
		}
		return true
	}
	for _, place := range []string{"/dev", "/sys/fs/cgroup", m.home} {
		if !visit(place, 0) {
			return
		}
	}
}

// terminals come and go in this directory, and nothing else can be made there.
const terminals = "/dev/pts"

func readOnly(path string) bool {
	var st syscall.Statfs_t
	return syscall.Statfs(path, &st) == nil && st.Flags&syscall.MS_RDONLY != 0
}

// changed names what differs from the manifest outside of the shared places.
func (m manifest) changed() []string {
	var out []string
	seen := 0
	m.eachUnseen(func(path string, n node) bool {
		was, known := m.unseen[path]
		switch {
		case !known:
			out = append(out, "A "+path)
		case was != n:
			out = append(out, "C "+path)
		}
		if known {
			seen++
		}
		return len(out) < mostNamed
	})
	if now := standing(); now != m.runner {
		out = append(out, "C limits, processors or scheduling of the runner")
	}
	if len(out) == 0 && seen < len(m.unseen) {
		out = append(out, fmt.Sprintf("D %d below /dev, /sys/fs/cgroup and %s", len(m.unseen)-seen, m.home))
	}
	return out
}

func eachShared(do func(path string, e entry) (removed bool)) {
	for _, dir := range sharedPlaces {
		eachEntry(dir, func(path string, st *syscall.Stat_t) bool { return do(path, entry{st.Ino, st.Ctim}) })
	}
}

// restore removes what was not there and says what else is different.
func (m manifest) restore() []string {
	var problems []string
	w := wipe.New(wipe.Budget)
	if m.entries == nil {
		return nil
	}
	seen := map[string]bool{}
	eachShared(func(path string, e entry) bool {
		was, known := m.entries[path]
		if !known {
			return w.Wipe(path)
		}
		if !seen[path] && (was.inode != e.inode || was.changed != e.changed && !isDir(path)) {
			problems = append(problems, path+" was changed")
		}
		seen[path] = true
		return false
	})
	problems = append(problems, w.Problems...)
	for path := range m.entries {
		if !seen[path] {
			problems = append(problems, path+" was removed")
		}
	}
	if slurpFile("/proc/self/mountinfo") != m.mounts {
		problems = append(problems, "the mounts of the box were changed")
	}
	if ipcObjects() != m.ipc {
		problems = append(problems, "System V IPC objects were made or removed")
	}
	return problems
}

// ipcObjects lists kind, key and id of the box's System V objects.
func ipcObjects() string {
	var out strings.Builder
	for _, kind := range ipcKinds {
		_, rows := ipcTable(kind)
		for _, f := range rows {
			out.WriteString(kind.name + " " + f[0] + " " + f[1] + "\n")
		}
	}
	return out.String()
}

func slurpFile(path string) string {
	data, err := os.ReadFile(path)
	if err != nil {
		return ""
	}
	return string(data)
}
