package users

import (
	"crypto/rand"
	"encoding/binary"
	"fmt"
	"slices"
	"sync"

	"hermes-exec/runner/internal/accounts"
	"hermes-exec/runner/internal/ipc"
	"hermes-exec/runner/internal/isolation"
)

// maxBlockSize is how many ids a runner claims at a time.
const maxBlockSize = 1 << 16

// Allocator gives every holder of a slot a uid that nobody had before in this
// boot, so that what one holder leaves anywhere is not the next one's. Runners
// that share a network namespace, as those of a host do, have no id in common:
// each claims blocks of them. The first id is a random one, so that two runners
// which cannot see each other's claims, because they have network namespaces of
// their own or one has ended, hardly meet: of 1.6e9 ids, two that give 10,000
// each have one in common once in 80,000 times. In a user namespace there are
// few ids (16,383 of 65,536), and runners in several of them may have the same.
type Allocator struct {
	mu       sync.Mutex
	first    uint32   // of all ids
	size     uint32   // of a block
	count    uint32   // of blocks
	blocks   []uint32 // the first id of each that is this runner's, in their order
	start    uint32   // the id of each block that is given first, counted from its own first
	next     uint32   // how many were given, counting those that were passed over
	living   map[uint32]bool
	reserved map[uint32]bool   // what users of the sandbox have, read once: it is then made ready
	Track    isolation.IDRange // for the group ids of commands
}

// NewAllocator of a boot.
func NewAllocator(f isolation.Facts) *Allocator {
	if ids := f.IDs; ids.First != 0 || ids.Count < 1<<32-2 {
		quarter := ids.Count / 4
		track := isolation.IDRange{First: ids.First + 3*quarter, Count: quarter - 600}
		if quarter < 1024 {
			track.Count = 0
		}
		return newAllocator(isolation.IDRange{First: ids.First + 2*quarter, Count: quarter - 1}, track)
	}
	// 0x10000000 … 0x6fffffff for uids, above 2^31 for the group ids of commands.
	return newAllocator(isolation.IDRange{First: 0x10000000, Count: 0x60000000},
		isolation.IDRange{First: 0x80000000, Count: 0x70000000})
}

func newAllocator(uids, track isolation.IDRange) *Allocator {
	size := max(1, min(maxBlockSize, uids.Count/16))
	return &Allocator{first: uids.First, size: size, count: uids.Count / size, start: random(size),
		living: map[uint32]bool{}, Track: track}
}

func random(below uint32) uint32 {
	var raw [8]byte
	_, _ = rand.Read(raw[:])
	return uint32(binary.NativeEndian.Uint64(raw[:]) % uint64(below))
}

// Allocate returns a uid that was not given before in this boot.
func (a *Allocator) Allocate() (uint32, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.reserved == nil {
		a.reserved = accounts.NumbersInUse()
	}
	for uint64(a.next) < uint64(len(a.blocks))*uint64(a.size) || a.addBlock() {
		uid := a.blocks[a.next/a.size] + (a.start+a.next)%a.size
		a.next++
		if uid != 0 && uid != 65534 && !a.reserved[uid] {
			a.living[uid] = true
			return uid, nil
		}
	}
	return 0, &ipc.Error{Kind: "isolation", Message: fmt.Sprintf(
		"all %d uids of this runner have been used, one for each holder of a slot: it takes a new sandbox", a.next)}
}

// addBlock takes a further block, one that no other runner has if there is one:
// a tenant may claim many for nothing.
func (a *Allocator) addBlock() bool {
	if uint32(len(a.blocks)) == a.count {
		return false
	}
	var block uint32
	from := random(a.count)
	for n := range a.count {
		at := a.first + (from+n)%a.count*a.size
		if slices.Contains(a.blocks, at) {
			continue
		}
		if block = at; claim(block) {
			break
		}
	}
	a.blocks = append(a.blocks, block)
	return true
}

// End notes that a holder and all its processes are gone.
func (a *Allocator) End(uid uint32) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.living, uid)
}

// Index is how many were given before a uid that was given.
func (a *Allocator) Index(uid uint32) uint32 {
	a.mu.Lock()
	defer a.mu.Unlock()
	index, _ := a.index(uid)
	return index
}

func (a *Allocator) index(uid uint32) (index uint32, assigned bool) {
	for n, block := range a.blocks {
		if at := uid - block; at < a.size {
			index = uint32(n)*a.size + (at+a.size-a.start)%a.size
			return index, index < a.next
		}
	}
	return 0, false
}

// Status tells whether a uid is or was that of a holder, and whether it still is.
func (a *Allocator) Status(uid uint32) (assigned, living bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	_, assigned = a.index(uid)
	return assigned, a.living[uid]
}
