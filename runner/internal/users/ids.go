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

// Allocator gives every slot of a boot a uid that nobody else has. Where all
// ids exist it starts somewhere at random, so that two runners on one host do
// not meet; where few do (a user namespace), near the upper end of them.
type Allocator struct {
	mu    sync.Mutex
	first uint32
	count uint32
	next  uint32
	Track isolation.IDRange // for the group ids of commands
}

// NewAllocator of a boot.
func NewAllocator(f isolation.Facts) *Allocator {
	var raw [4]byte
	_, _ = rand.Read(raw[:])
	random := binary.NativeEndian.Uint32(raw[:])
	ids := f.IDs
	if ids.First == 0 && ids.Count >= 1<<32-2 {
		// 0x10000000 … 0x6fffffff for uids, above 2^31 for the group ids of commands.
		return &Allocator{first: 0x10000000 + random%0x5ff0*0x10000, count: 0xffff,
			Track: isolation.IDRange{First: 0x80000000, Count: 0x70000000}}
	}
	quarter := ids.Count / 4
	a := &Allocator{first: ids.First + 2*quarter, count: quarter - 1,
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
	for a.next < a.count {
		uid := a.first + a.next
		a.next++
		if uid != 0 && uid != 65534 && !isolation.NumberTaken(uid) {
			return uid, nil
		}
	}
	return 0, &ipc.Error{Kind: "isolation", Message: fmt.Sprintf("all %d uids of this runner have been used", a.count)}
}

// Index is how many were given before.
func (a *Allocator) Index(uid uint32) uint32 { return uid - a.first }

// Has tells whether a uid is, was or will be that of a slot.
func (a *Allocator) Has(uid uint32) bool { return uid-a.first < a.count }
