package budget

import (
	"encoding/binary"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// Default is the budget of a sandbox unless its driver says otherwise.
	DefaultLimit = 256 << 20
	// Least is enough for a command or two with the usual output limit.
	MinLimit = 4 << 20
	// sandboxShare is the part of the sandbox's memory that a budget may be.
	sandboxShare = 8
	// outputShare is the part of a budget that one output limit may be.
	outputShare = 4
	// minOutput may always be asked for.
	minOutput = 4 << 20
	// modest is what a holder may have of the last quarter of a budget, a command
	// with the usual output limit: one that keeps much leaves room for others.
	modestUse = 5 << 19
	// reclaimShare is the part of the budget that a reclaim frees at least.
	reclaimShare = 16
	// reclaimPause follows a reclaim that found nothing.
	reclaimPause = 100 * time.Millisecond
	// worthwhile is how much must have been given back before memory is
	// returned to the system, trimDelay after the last large release.
	minTrim   = 16 << 20
	trimDelay = 4 * time.Second
)

// Budget is what one runner has. A nil one is unlimited and counts nothing.
type Budget struct {
	limit, used, peak, dropped atomic.Int64
	released                   atomic.Int64 // since memory was last returned

	reclaiming     sync.Mutex // held by whoever frees memory
	pauseUntil     time.Time
	reclaimRunning atomic.Bool // a reclaim was begun that nobody waits for
	reclaim        func(need int64) (freed int64)

	trimMu    sync.Mutex
	trimTimer *time.Timer
	onTrim    func()
}

// New makes a budget of limit bytes. onTrim is called, if it is not nil, some
// time after much was given back.
func New(limit int64, onTrim func()) *Budget {
	b := &Budget{onTrim: onTrim, reclaim: func(int64) int64 { return 0 }}
	b.limit.Store(max(limit, MinLimit))
	return b
}

// OnPressure sets what frees memory when a budget is used up, the cheapest loss
// first. It is called without locks, before the budget is used.
func (b *Budget) OnPressure(free func(need int64) (freed int64)) {
	if b != nil {
		b.reclaim = free
	}
}

// Resize sets another limit, which is at most a part of a sandbox that has
// sandbox bytes (0: without a limit).
func (b *Budget) Resize(limit, sandbox int64) {
	if sandbox > 0 {
		limit = min(limit, sandbox/sandboxShare)
	}
	b.limit.Store(max(limit, MinLimit))
}

// Limit is how many bytes there are.
func (b *Budget) Limit() int64 { return b.limit.Load() }

// MostOutput is the largest output limit that may be asked for.
func (b *Budget) MostOutput() int64 { return max(b.Limit()/outputShare, minOutput) }

// Use is what Stats of a budget are.
type Stats struct {
	Limit   int64 `json:"limit_bytes"`
	Used    int64 `json:"used_bytes"`
	Peak    int64 `json:"peak_bytes"`
	Dropped int64 `json:"dropped_bytes"`
}

// Stats tells how much of the budget is in use, was at most, and what was
// dropped for want of it.
func (b *Budget) Stats() Stats {
	return Stats{b.limit.Load(), b.used.Load(), b.peak.Load(), b.dropped.Load()}
}

// Encode is Use as four numbers of 64 bits.
func (u Stats) Encode() (encoded []byte) {
	for _, n := range []int64{u.Limit, u.Used, u.Peak, u.Dropped} {
		encoded = binary.BigEndian.AppendUint64(encoded, uint64(max(0, n)))
	}
	return encoded
}

// IsTight says whether the budget is used up.
func (b *Budget) IsTight() bool { return b != nil && b.used.Load() > b.limit.Load() }

// Drop notes that n bytes of output were dropped for want of memory.
func (b *Budget) Drop(n int64) {
	if b != nil {
		b.dropped.Add(n)
	}
}

// tryReserve takes n bytes if they fit for a holder that has held already.
func (b *Budget) tryReserve(n, held int64) bool {
	most := b.limit.Load()
	if held+n > modestUse {
		most -= most / 4
	}
	now := b.used.Add(n)
	if now > most {
		b.used.Add(-n)
		return false
	}
	b.note(now)
	return true
}

func (b *Budget) note(now int64) {
	for peak := b.peak.Load(); now > peak && !b.peak.CompareAndSwap(peak, now); peak = b.peak.Load() {
	}
}

// reserve is try, and frees memory of others first where they do not fit. It must
// be called without a lock that whatever frees memory needs.
func (b *Budget) reserve(n, held int64) bool {
	if b.tryReserve(n, held) {
		return true
	}
	b.reclaiming.Lock()
	defer b.reclaiming.Unlock()
	if b.tryReserve(n, held) {
		return true
	}
	return b.free(n) && b.tryReserve(n, held)
}

// free is called with reclaiming held.
func (b *Budget) free(n int64) bool {
	now := time.Now()
	if now.Before(b.pauseUntil) {
		return false
	}
	if b.reclaim(max(n, b.limit.Load()/reclaimShare)) == 0 {
		b.pauseUntil = now.Add(reclaimPause)
		return false
	}
	return true
}

// forceReserve takes n bytes whether they fit or not. Others make room later.
func (b *Budget) forceReserve(n int64) {
	now := b.used.Add(n)
	b.note(now)
	if now > b.limit.Load() && !b.reclaimRunning.Swap(true) {
		go func() {
			defer b.reclaimRunning.Store(false)
			b.reclaiming.Lock()
			defer b.reclaiming.Unlock()
			b.free(b.used.Load() - b.limit.Load())
		}()
	}
}

func (b *Budget) release(n int64) {
	b.used.Add(-n)
	if b.onTrim == nil || b.released.Add(n) < minTrim {
		return
	}
	b.released.Store(0)
	b.trimMu.Lock()
	defer b.trimMu.Unlock()
	if b.trimTimer == nil {
		b.trimTimer = time.AfterFunc(trimDelay, b.onTrim)
		return
	}
	b.trimTimer.Reset(trimDelay)
}

// Account is what one holder has taken of a budget. Its methods may be called
// by several goroutines, and on nil.
type Account struct {
	budget  *Budget
	balance atomic.Int64
}

// Open makes an empty account.
func (b *Budget) Open() *Account {
	if b == nil {
		return nil
	}
	return &Account{budget: b}
}

// Reserve takes n bytes, and says whether they were to be had.
func (a *Account) Reserve(n int64) bool {
	if a == nil || n <= 0 {
		return true
	}
	if !a.budget.reserve(n, a.balance.Load()) {
		return false
	}
	a.balance.Add(n)
	return true
}

// Force takes n bytes that cannot be done without.
func (a *Account) Force(n int64) {
	if a != nil && n > 0 {
		a.balance.Add(n)
		a.budget.forceReserve(n)
	}
}

// Release gives n bytes back, or all that there are.
func (a *Account) Release(n int64) {
	if a == nil || n <= 0 {
		return
	}
	for {
		held := a.balance.Load()
		n = min(n, held)
		if a.balance.CompareAndSwap(held, held-n) {
			break
		}
	}
	if n > 0 {
		a.budget.release(n)
	}
}

// Drop notes that n bytes of output were dropped for want of memory.
func (a *Account) Drop(n int64) {
	if a != nil {
		a.budget.Drop(n)
	}
}

// Balance is how much it has.
func (a *Account) Balance() int64 {
	if a == nil {
		return 0
	}
	return a.balance.Load()
}

// Close gives everything back.
func (a *Account) Close() {
	if a != nil {
		a.Release(a.balance.Load())
	}
}
