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

// Allocator gives every holder of a slot a uid that nobody had before in this boot, so that files
// of one holder do not belong to the next.
//
// Runners that share a network namespace, such as the runners of a host, have no id in common: each
// claims blocks of ids. The first id is random, because two runners may not see each other's
// claims: they may have separate network namespaces, or one has ended. Of 1.6e9 ids, two runners
// that give out 10,000 each have one in common once in 80,000 times. A user namespace has few ids
// (16,383 of 65,536), and runners in several user namespaces may have the same.
type Allocator struct {
	mu       sync.Mutex
	first    uint32   // the first of all ids
	size     uint32   // of a block
	count    uint32   // of blocks
	blocks   []uint32 // the first id of each claimed block, in the order of the claims
	start    uint32   // offset of the first id that each block gives out
	next     uint32   // how many were given out, including skipped ids
	living   map[uint32]bool
	reserved map[uint32]bool   // ids of the sandbox's users, read once when the sandbox is prepared
	Track    isolation.IDRange // for the group ids of commands
}

// NewAllocator returns the Allocator of a runner.
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

// Allocate returns a uid that was not given out before in this boot.
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
		"all %d uids of this runner have been used, one for each holder of a slot: start a new sandbox", a.next)}
}

// addBlock adds a block, if possible a block that no other runner has. A tenant may claim many
// blocks to harm the runner.
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

// End records that a holder and all its processes have ended.
func (a *Allocator) End(uid uint32) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.living, uid)
}

// Index returns how many ids were given out before this one.
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

// Status reports whether a uid was given to a holder, and whether the holder still lives.
func (a *Allocator) Status(uid uint32) (assigned, living bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	_, assigned = a.index(uid)
	return assigned, a.living[uid]
}
