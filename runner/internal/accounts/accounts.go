package accounts

import (
	"cmp"
	"fmt"
	"strconv"
	"strings"

	"hermes-exec/runner/internal/bounded"
)

// User is an entry of passwd with its groups.
type User struct {
	Name   string
	UID    uint32
	GID    uint32
	Home   string
	Groups []uint32
}

// PasswdFile returns a passwd file with the slot's user, root and nobody. The slot's user comes
// first in case another has the same number.
func PasswdFile(u User, shell string) string {
	return PasswdLine(u, shell) + "root:x:0:0:root:/nonexistent:/usr/sbin/nologin\n" +
		"nobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n"
}

// PasswdLine returns the passwd line of the slot's user.
func PasswdLine(u User, shell string) string {
	if shell == "" {
		shell = "/bin/false"
	}
	return fmt.Sprintf("%s:x:%d:%d::%s:%s\n", u.Name, u.UID, u.GID, u.Home, shell)
}

// GroupFile returns the group file that goes with PasswdFile.
func GroupFile(u User) string {
	return GroupLine(u) + "root:x:0:\ntty:x:5:\nnogroup:x:65534:\n"
}

// GroupLine returns the group line of the slot's user.
func GroupLine(u User) string { return fmt.Sprintf("%s:x:%d:\n", u.Name, u.GID) }

// LookupUser resolves a user by the passwd and group files that this process sees: a name or
// number, optionally with :group. A number needs no entry. The empty string is root.
func LookupUser(user string) (User, error) {
	name, group, hasGroup := strings.Cut(user, ":")
	if name == "" {
		name = "0"
	}
	out := User{Home: "/"}
	hasEntry := false
	for _, f := range entries("/etc/passwd", 6) {
		if f[0] != name && f[2] != name {
			continue
		}
		uid, err1 := id(f[2])
		gid, err2 := id(f[3])
		if err1 != nil || err2 != nil {
			continue
		}
		out.Name, out.UID, out.GID, out.Home, hasEntry = f[0], uid, gid, cmp.Or(f[5], "/"), true
		break
	}
	if !hasEntry {
		uid, err := id(name)
		if err != nil {
			return User{}, fmt.Errorf("no user %q in this sandbox", name)
		}
		out.Name, out.UID, out.GID = name, uid, 0
		if uid == 0 {
			out.Name = "root"
		}
	}
	if !hasGroup {
		out.Groups = groupIDs(out.Name, out.GID)
		return out, nil
	}
	gid, err := lookupGroup(group)
	if err != nil {
		return User{}, err
	}
	out.GID, out.Groups = gid, []uint32{gid}
	return out, nil
}

func lookupGroup(group string) (uint32, error) {
	for _, f := range entries("/etc/group", 3) {
		if f[0] == group {
			return id(f[2])
		}
	}
	gid, err := id(group)
	if err != nil {
		return 0, fmt.Errorf("no group %q in this sandbox", group)
	}
	return gid, nil
}

func groupIDs(name string, gid uint32) []uint32 {
	out := []uint32{gid}
	for _, f := range entries("/etc/group", 4) {
		for _, member := range strings.Split(f[3], ",") {
			if member != name {
				continue
			}
			if g, err := id(f[2]); err == nil && g != gid {
				out = append(out, g)
			}
		}
	}
	return out
}

func id(s string) (uint32, error) {
	n, err := strconv.ParseUint(s, 10, 32)
	if err != nil || n == 1<<32-1 {
		return 0, fmt.Errorf("%q is no id", s)
	}
	return uint32(n), nil
}

func entries(path string, fields int) [][]string { return parseEntries(readAccounts(path), fields) }

// maxAccounts is the largest passwd or group file that is read, in bytes.
const maxAccounts = 4 << 20

// readAccounts reads a passwd or group file. The tenant of an exclusive slot may have replaced it
// with a FIFO or an endless file.
func readAccounts(path string) []byte {
	data, _, err := bounded.ReadFile(path, maxAccounts)
	if err != nil {
		return nil
	}
	return data
}

func parseEntries(data []byte, fields int) [][]string {
	var out [][]string
	for _, line := range strings.Split(string(data), "\n") {
		if f := strings.Split(line, ":"); len(f) >= fields && f[0] != "" {
			out = append(out, f)
		}
	}
	return out
}

// NumbersInUse returns the numbers of the sandbox's users and groups.
func NumbersInUse() map[uint32]bool {
	numbers := map[uint32]bool{}
	for _, path := range []string{"/etc/passwd", "/etc/group"} {
		for _, f := range entries(path, 3) {
			if number, err := id(f[2]); err == nil {
				numbers[number] = true
			}
		}
	}
	return numbers
}
