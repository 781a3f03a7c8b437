package users

import (
	"os"
	"strings"
	"sync"

	"hermes-exec/runner/internal/accounts"
	"hermes-exec/runner/internal/bounded"
)

var namesMu sync.Mutex

// AddName gives a slot's user a name in the sandbox's own files.
func AddName(user accounts.User, shell string) error {
	namesMu.Lock()
	defer namesMu.Unlock()
	if err := appendLine("/etc/passwd", accounts.PasswdLine(user, shell)); err != nil {
		return err
	}
	// A group without a name does no harm.
	_ = appendLine("/etc/group", accounts.GroupLine(user))
	return nil
}

func appendLine(path, line string) error {
	data, err := bounded.ReadWhole(path, bounded.TableSize)
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

// ChangeName gives the name of a slot's user another number.
func ChangeName(user accounts.User, shell string) error {
	namesMu.Lock()
	defer namesMu.Unlock()
	if err := changeLine("/etc/passwd", user.Name, accounts.PasswdLine(user, shell)); err != nil {
		return err
	}
	_ = changeLine("/etc/group", user.Name, accounts.GroupLine(user))
	return nil
}

// RemoveName removes the name.
func RemoveName(name string) error {
	namesMu.Lock()
	defer namesMu.Unlock()
	for _, path := range []string{"/etc/passwd", "/etc/group"} {
		if err := changeLine(path, name, ""); err != nil {
			return err
		}
	}
	return nil
}

// changeLine writes in place and changes as little as possible: the file may be a mount, keeps its
// owner, and others read it meanwhile.
func changeLine(path, name, line string) error {
	data, err := bounded.ReadWhole(path, bounded.TableSize)
	if err != nil {
		return err
	}
	var text strings.Builder
	for entry := range strings.Lines(string(data)) {
		if strings.HasPrefix(entry, name+":x:") {
			entry = line
		}
		text.WriteString(entry)
	}
	content := text.String()
	from := 0
	for from < min(len(data), len(content)) && data[from] == content[from] {
		from++
	}
	to := len(content)
	if to == len(data) {
		for to > from && data[to-1] == content[to-1] {
			to--
		}
	}
	if from == to && len(content) == len(data) {
		return nil
	}
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteAt([]byte(content[from:to]), int64(from))
	if err == nil && len(content) < len(data) {
		err = f.Truncate(int64(len(content)))
	}
	if closing := f.Close(); err == nil {
		err = closing
	}
	return err
}
