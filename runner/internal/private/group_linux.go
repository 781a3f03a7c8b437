package private

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"syscall"

	"hermes-exec/runner/internal/bounded"
)

// isPrivateGroup reports whether only root and this user have the rights of a directory's group.
// Many systems make such a group for each user. With an ACL these rights belong to the entries of
// the ACL, so the group is not private. Accounts that are not in the system's files are unknown:
// their groups are not private either.
func isPrivateGroup(dir string, info os.FileInfo) bool {
	st, ok := info.Sys().(*syscall.Stat_t)
	if _, err := syscall.Getxattr(dir, "system.posix_acl_access", nil); !ok || err == nil {
		return false
	}
	root, own, group := "0", fmt.Sprint(os.Geteuid()), fmt.Sprint(st.Gid)
	var names []string
	first := 0 // how many users have it as their first group
	for _, user := range readTable("/etc/passwd") {
		isOurs := user[2] == root || user[2] == own
		if isOurs {
			names = append(names, user[0])
		}
		if user[3] == group && !isOurs {
			return false
		}
		if user[3] == group {
			first++
		}
	}
	hasEntry := false
	for _, entry := range readTable("/etc/group") {
		if entry[2] != group {
			continue
		}
		hasEntry = true
		for member := range strings.SplitSeq(entry[3], ",") {
			if member != "" && !slices.Contains(names, member) {
				return false
			}
		}
	}
	return first > 0 && hasEntry
}

// readTable reads lines of at least four fields.
func readTable(path string) (entries [][]string) {
	text, _ := bounded.ReadWhole(path, bounded.TableSize)
	for line := range strings.Lines(string(text)) {
		if fields := strings.Split(strings.TrimSpace(line), ":"); len(fields) >= 4 {
			entries = append(entries, fields)
		}
	}
	return entries
}
