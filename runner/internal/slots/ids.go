package slots

import (
	"crypto/rand"
	"encoding/binary"
	"sync"

	"hermes-exec/runner/internal/isolation"
)

// allocator gives every slot of a boot a uid that nobody else has. Where all
// ids exist it starts somewhere at random, so that two runners on one host do
// not meet; where few do (a user namespace), near the upper end of them.
type allocator struct {
	mu    sync.Mutex
	first uint32
	count uint32
	next  uint32
	track isolation.IDRange
}

func newAllocator(f isolation.Facts) *allocator {
	var raw [4]byte
	_, _ = rand.Read(raw[:])
	random := binary.NativeEndian.Uint32(raw[:])
	ids := f.IDs
	if ids.First == 0 && ids.Count >= 1<<32-2 {
		// 0x10000000 … 0x6fffffff for uids, above 2^31 for the group ids of commands.
		return &allocator{first: 0x10000000 + random%0x5ff0*0x10000, count: 0xffff, track: isolation.IDRange{First: 0x80000000, Count: 0x70000000}}
	}
	quarter := ids.Count / 4
	a := &allocator{first: ids.First + 2*quarter, count: quarter - 1, track: isolation.IDRange{First: ids.First + 3*quarter, Count: quarter - 600}}
	if quarter < 1024 {
		a.track.Count = 0
	}
	return a
}

// take returns a uid that was not given before in this boot.
func (a *allocator) take() (uint32, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for a.next < a.count {
		uid := a.first + a.next
		a.next++
		if uid != 0 && uid != 65534 && !isolation.NumberTaken(uid) {
			return uid, nil
		}
	}
	return 0, failure("isolation", "all %d uids of this runner have been used", a.count)
}

func (a *allocator) index(uid uint32) uint32 { return uid - a.first }
