package private

import (
	"strconv"
	"strings"
	"sync"

	"hermes-exec/runner/internal/bounded"
)

// isUnmapped reports whether a uid stands for all users without a number in this user namespace:
// files made outside of it belong to them.
func isUnmapped(uid int) bool { return uid == overflowUID() }

// overflowUID returns the uid of users without a number, -1 if each uid has one.
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
