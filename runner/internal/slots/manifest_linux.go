package slots

import (
	"os"
	"strings"
	"syscall"
)

// manifest is what a whole box had in its shared places before its tenant
// came. What the tenant changed elsewhere in the image is for the driver to
// find, which can ask the engine.
type manifest struct {
	entries map[string]entry
	mounts  string
	ipc     string
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

// newManifest looks at the places themselves, not below.
func newManifest() manifest {
	m := manifest{entries: map[string]entry{}, mounts: slurpFile("/proc/self/mountinfo"), ipc: ipcObjects()}
	eachShared(func(path string, e entry) bool {
		m.entries[path] = e
		return false
	})
	return m
}

func eachShared(do func(path string, e entry) (removed bool)) {
	for _, dir := range sharedPlaces {
		eachEntry(dir, func(path string, st *syscall.Stat_t) bool { return do(path, entry{st.Ino, st.Ctim}) })
	}
}

// restore removes what was not there and says what else is different.
func (m manifest) restore() []string {
	var problems []string
	w := newWiper(wipeBudget)
	if m.entries == nil {
		return nil
	}
	seen := map[string]bool{}
	eachShared(func(path string, e entry) bool {
		was, known := m.entries[path]
		if !known {
			return w.wipe(path)
		}
		if !seen[path] && (was.inode != e.inode || was.changed != e.changed && !isDir(path)) {
			problems = append(problems, path+" was changed")
		}
		seen[path] = true
		return false
	})
	problems = append(problems, w.problems...)
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
