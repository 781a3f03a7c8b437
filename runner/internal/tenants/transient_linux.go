package tenants

import (
	"os"
	"syscall"

	"hermes-exec/runner/internal/ipc"
	"hermes-exec/runner/internal/sysv"
)

// Transient returns the processes of the slot and, if it does not share them with its sandbox, which
// file systems in memory have files, and how many System V objects there are.
func (t *Tenants) Transient() ipc.Transient {
	out := ipc.Transient{Processes: t.Processes().Processes}
	if t.setup.View.Kind == "" {
		return out
	}
	paths := []string{"/dev/shm", "/dev/mqueue"}
	if image := t.setup.View.Image; image != nil {
		for _, m := range image.Memory {
			paths = append(paths, m.Path)
		}
	}
	t.threads.Do(func() {
		for _, path := range paths {
			if hasEntries(path) {
				out.Memory = append(out.Memory, ipc.Bytes(path))
			}
		}
		_ = sysv.Each(func(sysv.Object) { out.Objects++ })
	})
	return out
}

// hasEntries reports whether a directory has entries, as far as it can be read.
func hasEntries(path string) bool {
	dir, err := os.OpenFile(path, os.O_RDONLY|syscall.O_DIRECTORY|syscall.O_NOFOLLOW, 0)
	if err != nil {
		return false
	}
	defer dir.Close()
	names, _ := dir.Readdirnames(1)
	return len(names) > 0
}
