package budget

import (
	"sync"
	"sync/atomic"
	"time"
)

const (
	// DefaultLimit is the budget of a sandbox unless its driver sets another.
	DefaultLimit = 256 << 20
	// MinLimit is enough for a command or two with the usual output limit.
	MinLimit = 4 << 20
	// sandboxShare: a budget is at most this fraction of the sandbox's memory.
	sandboxShare = 8
	// outputShare: an output limit is at most this fraction of the budget.
	outputShare = 4
	// minOutput is an output limit that is always allowed.
	minOutput = 4 << 20
	// modestUse is the most that one holder may have while the last quarter of a budget is in use:
	// a command with the usual output limit. Holders of more leave room for others.
	modestUse = 5 << 19
	// reclaimShare: a reclaim frees at least this fraction of the budget.
	reclaimShare = 16
	// reclaimPause follows a reclaim that freed nothing.
	reclaimPause = 100 * time.Millisecond
	// minTrim is the memory that must have been released before it is returned to the system,
	// trimDelay after the last large release.
	minTrim   = 16 << 20
	trimDelay = 4 * time.Second
)

// Budget is the memory budget of one runner. A nil budget is unlimited and counts nothing.
type Budget struct {
	limit, used, peak, dropped atomic.Int64
	released                   atomic.Int64 // since memory was last returned to the system

	reclaiming     sync.Mutex // held while memory is freed
	pauseUntil     time.Time
	reclaimRunning atomic.Bool // whether a background reclaim is running
	reclaim        func(need int64) (freed int64)

	trimMu    sync.Mutex
	trimTimer *time.Timer
	onTrim    func()
}

// New makes a budget of limit bytes. onTrim, if it is not nil, is called some time after much was
// released.
func New(limit int64, onTrim func()) *Budget {
	b := &Budget{onTrim: onTrim, reclaim: func(int64) int64 { return 0 }}
	b.limit.Store(max(limit, MinLimit))
	return b
}

// OnPressure sets the function that frees memory when the budget is used up, the cheapest loss
// first. It is called without locks. OnPressure must be called before the budget is used.
func (b *Budget) OnPressure(free func(need int64) (freed int64)) {
	if b != nil {
		b.reclaim = free
	}
}

// Resize sets another limit. In a sandbox of sandbox bytes (0: no limit) it is at most a fraction
// of those.
func (b *Budget) Resize(limit, sandbox int64) {
	if sandbox > 0 {
		limit = min(limit, sandbox/sandboxShare)
	}
	b.limit.Store(max(limit, MinLimit))
}

// Limit returns the size of the budget in bytes.
func (b *Budget) Limit() int64 { return b.limit.Load() }

// MostOutput returns the largest output limit that a request may ask for.
func (b *Budget) MostOutput() int64 { return max(b.Limit()/outputShare, minOutput) }

// Stats are the figures of a budget.
type Stats struct {
	Limit   int64 `json:"limit_bytes"`
	Used    int64 `json:"used_bytes"`
	Peak    int64 `json:"peak_bytes"`
	Dropped int64 `json:"dropped_bytes"`
}

// Stats returns how much of the budget is in use, how much was in use at most, and how much output
// was dropped for lack of memory.
func (b *Budget) Stats() Stats {
	return Stats{b.limit.Load(), b.used.Load(), b.peak.Load(), b.dropped.Load()}
}

// IsTight reports whether the budget is used up.
func (b *Budget) IsTight() bool { return b != nil && b.used.Load() > b.limit.Load() }

// Drop counts n bytes of output as dropped for lack of memory.
func (b *Budget) Drop(n int64) {
	if b != nil {
		b.dropped.Add(n)
	}
}

// tryReserve takes n bytes if they fit, for a holder that has held bytes already.
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

// reserve takes n bytes and frees memory of others first if they do not fit. The caller must not
// hold a lock that the freeing needs.
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

// forceReserve takes n bytes even if they do not fit. A background reclaim makes room later.
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

// Account is the share of a budget that one holder has. Its methods may be called by several
// goroutines, and on nil.
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

// Reserve takes n bytes and reports whether they fit.
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

// Force takes n bytes even if they do not fit.
func (a *Account) Force(n int64) {
	if a != nil && n > 0 {
		a.balance.Add(n)
		a.budget.forceReserve(n)
	}
}

// Release gives n bytes back, at most all that the account has.
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

// Drop counts n bytes of output as dropped for lack of memory.
func (a *Account) Drop(n int64) {
	if a != nil {
		a.budget.Drop(n)
	}
}

// Balance returns how many bytes the account has.
func (a *Account) Balance() int64 {
	if a == nil {
		return 0
	}
	return a.balance.Load()
}

// Close releases everything.
func (a *Account) Close() {
	if a != nil {
		a.Release(a.balance.Load())
	}
}
