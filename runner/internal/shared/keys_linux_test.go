package shared

import (
	"os"
	"regexp"
	"strconv"
	"syscall"
	"testing"
	"time"
	"unsafe"
)

// Keyrings that stay make the kernel slow: each key that ends looks at all of them.
func TestNoKeyOfAUserStays(t *testing.T) {
	_, uids := placesOf(t, 1)
	uid := uids[0]
	addKey := func() error {
		kind, name, value := append([]byte("user"), 0), append([]byte("secret"), 0), []byte("value")
		for _, ring := range []int{-4, -5} { // of the user, and of its sessions
			_, _, errno := syscall.Syscall6(syscall.SYS_ADD_KEY, uintptr(unsafe.Pointer(&kind[0])),
				uintptr(unsafe.Pointer(&name[0])), uintptr(unsafe.Pointer(&value[0])), uintptr(len(value)), uintptr(ring), 0)
			if errno != 0 {
				return errno
			}
		}
		return nil
	}
	if err := runAsUser(uid, uid, addKey); err != nil {
		t.Skipf("this kernel or engine refuses keys: %v", err)
	}
	hasKeys := func() bool {
		text, err := os.ReadFile("/proc/key-users")
		if err != nil {
			t.Fatal(err)
		}
		return regexp.MustCompile(`(?m)^ *` + strconv.Itoa(int(uid)) + `:`).Match(text)
	}
	if !hasKeys() {
		t.Fatal("the user has no keys")
	}
	if problems := removeKeys(uid, uid); problems != nil {
		t.Fatal(problems)
	}
	// The kernel frees keys in the background.
	for end := time.Now().Add(20 * time.Second); hasKeys(); time.Sleep(50 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("keys of the user are left")
		}
	}
}
