package session

import (
	"os"
	"path/filepath"
)

// shellPaths are the paths of shells, in the order in which they are tried.
var shellPaths = []string{"/bin/bash", "/usr/bin/bash", "/usr/local/bin/bash", "/bin/sh", "/usr/bin/sh", "/bin/dash",
	"/usr/bin/dash", "/bin/ash", "/bin/zsh", "/usr/bin/zsh"}

// FindShells maps the name of each shell to its path. The name of /bin/sh is the name of its
// target; "sh" means an unknown shell.
func FindShells() map[string]string {
	out := map[string]string{}
	for _, path := range shellPaths {
		real, err := filepath.EvalSymlinks(path)
		if err != nil {
			continue
		}
		st, err := os.Stat(real)
		if err != nil || !st.Mode().IsRegular() || st.Mode().Perm()&0o111 == 0 {
			continue
		}
		kind := filepath.Base(real)
		switch kind {
		case "bash", "dash", "zsh", "busybox", "ksh", "mksh", "yash":
		default:
			kind = filepath.Base(path)
			if kind == "sh" && sameAsBusybox(st) {
				kind = "busybox"
			}
		}
		if _, have := out[kind]; !have {
			out[kind] = path
		}
	}
	return out
}

// sameAsBusybox reports whether a file is a hard link to busybox.
func sameAsBusybox(st os.FileInfo) bool {
	for _, path := range []string{"/bin/busybox", "/usr/bin/busybox"} {
		if other, err := os.Stat(path); err == nil && os.SameFile(st, other) {
			return true
		}
	}
	return false
}

// StandardShell returns the name of the shell for commands outside of sessions.
func StandardShell(shells map[string]string) *string {
	for _, kind := range []string{"bash", "dash", "busybox", "ash", "sh", "ksh", "mksh", "yash", "zsh"} {
		if _, ok := shells[kind]; ok {
			return &kind
		}
	}
	return nil
}
