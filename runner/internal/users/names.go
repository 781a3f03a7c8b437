package users

import (
	"os"
	"strings"
	"sync"

	"hermes-exec/runner/internal/bounded"
	"hermes-exec/runner/internal/isolation"
)

var namesMu sync.Mutex

// AddName gives a slot's user a name in the box's own files.
func AddName(user isolation.User, shell string) error {
	namesMu.Lock()
	defer namesMu.Unlock()
	if err := appendLine("/etc/passwd", isolation.PasswdLine(user, shell)); err != nil {
		return err
	}
	// A group without a name is no more than untidy.
	_ = appendLine("/etc/group", isolation.GroupLine(user))
	return nil
}

func appendLine(path, line string) error {
	data, err := bounded.ReadWhole(path, bounded.Table)
	if err != nil {
		return err
	}
	if len(data) > 0 && data[len(data)-1] != '\n' {
		line = "\n" + line
	}
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_APPEND, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteString(line)
	if closing := f.Close(); err == nil {
		err = closing
	}
	return err
}

// RemoveName takes it away.
func RemoveName(name string) error {
	namesMu.Lock()
	defer namesMu.Unlock()
	for _, path := range []string{"/etc/passwd", "/etc/group"} {
		if err := removeLine(path, name+":x:"); err != nil {
			return err
		}
	}
	return nil
}

// removeLine writes in place: the file may be a mount, and keeps its owner.
func removeLine(path, prefix string) error {
	data, err := bounded.ReadWhole(path, bounded.Table)
	if err != nil {
		return err
	}
	var kept strings.Builder
	for _, line := range strings.SplitAfter(string(data), "\n") {
		if !strings.HasPrefix(line, prefix) {
			kept.WriteString(line)
		}
	}
	if kept.Len() == len(data) {
		return nil
	}
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteAt([]byte(kept.String()), 0)
	if err == nil {
		err = f.Truncate(int64(kept.Len()))
	}
	if closing := f.Close(); err == nil {
		err = closing
	}
	return err
}
