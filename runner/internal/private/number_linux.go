package private

import (
	"strconv"
	"strings"
	"sync"

	"hermes-exec/runner/internal/bounded"
)

// isUnmapped says whether a uid stands for all that have no number in this user
// namespace: what was made outside of it belongs to them.
func isUnmapped(uid int) bool { return uid == overflowUID() }

// nobody is the uid of those without a number, -1 where each uid has one.
var overflowUID = sync.OnceValue(func() int {
	ids, err := bounded.ReadWhole("/proc/self/uid_map", bounded.SettingSize)
	if err != nil || strings.Join(strings.Fields(string(ids)), " ") == "0 0 4294967295" {
		return -1
	}
	text, _ := bounded.ReadWhole("/proc/sys/kernel/overflowuid", bounded.SettingSize)
	uid, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil {
		return -1
	}
	return uid
})
