// Package users gives slots user ids of their own, and names to these.
package users

import (
	"crypto/rand"
	"encoding/binary"
	"fmt"
	"sync"

	"hermes-exec/runner/internal/ipc"
	"hermes-exec/runner/internal/isolation"
)

// Allocator gives every holder of a slot a uid that nobody had before in this
// boot, so that what one holder leaves anywhere is not the next one's. Where all
// ids exist it starts somewhere at random, so that two runners on one host do
// not meet; where few do (a user namespace), near the upper end of them.
type Allocator struct {
	mu     sync.Mutex
	first  uint32
	count  uint32
	start  uint32 // the first that is given, counted from first
	next   uint32 // how many were given
	living map[uint32]bool
	taken  map[uint32]bool   // what users of the sandbox have, read once: it is then made ready
	Track  isolation.IDRange // for the group ids of commands
}

// NewAllocator of a boot.
func NewAllocator(f isolation.Facts) *Allocator {
	ids, living := f.IDs, map[uint32]bool{}
	if ids.First == 0 && ids.Count >= 1<<32-2 {
		var raw [4]byte
		_, _ = rand.Read(raw[:])
		// 0x10000000 … 0x6fffffff for uids, above 2^31 for the group ids of commands.
		return &Allocator{first: 0x10000000, count: 0x60000000, start: binary.NativeEndian.Uint32(raw[:]) % 0x60000000,
			living: living, Track: isolation.IDRange{First: 0x80000000, Count: 0x70000000}}
	}
	quarter := ids.Count / 4
	a := &Allocator{first: ids.First + 2*quarter, count: quarter - 1, living: living,
		Track: isolation.IDRange{First: ids.First + 3*quarter, Count: quarter - 600}}
	if quarter < 1024 {
		a.Track.Count = 0
	}
	return a
}

// Take returns a uid that was not given before in this boot.
func (a *Allocator) Take() (uint32, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.taken == nil {
		a.taken = isolation.TakenNumbers()
	}
	for a.next < a.count {
		uid := a.first + (a.start+a.next)%a.count
		a.next++
		if uid != 0 && uid != 65534 && !a.taken[uid] {
			a.living[uid] = true
			return uid, nil
		}
	}
	return 0, &ipc.Error{Kind: "isolation", Message: fmt.Sprintf(
		"all %d uids of this runner have been used, one for each holder of a slot: it takes a new sandbox", a.count)}
}

// End notes that a holder and all its processes are gone.
func (a *Allocator) End(uid uint32) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.living, uid)
}

// Index is how many were given before.
func (a *Allocator) Index(uid uint32) uint32 { return (uid - a.first + a.count - a.start) % a.count }

// Given tells whether a uid is or was that of a holder, and whether it still is.
func (a *Allocator) Given(uid uint32) (given, living bool) {
	if uid-a.first >= a.count {
		return false, false
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.Index(uid) < a.next, a.living[uid]
}
