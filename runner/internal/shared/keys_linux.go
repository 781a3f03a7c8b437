package shared

import (
	"runtime"

	"hermes-exec/runner/internal/rights"
)

// removeKeys removes the keyrings of a uid, which the kernel keeps for some time after its last
// process. It returns the problems.
func removeKeys(uid, gid uint32) []string {
	if err := runAsUser(uid, gid, rights.RemoveUserKeys); err != nil {
		return []string{"the keys of the slot's user cannot be removed: " + err.Error()}
	}
	return nil
}

// runAsUser runs do on a thread of its own that has become a user.
func runAsUser(uid, gid uint32, do func() error) error {
	done := make(chan error)
	go func() {
		// Never unlocked: the thread ends with this goroutine.
		runtime.LockOSThread()
		done <- rights.AsUser(uid, gid, do)
	}()
	return <-done
}
