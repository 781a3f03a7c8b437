package diskspace

import "sync/atomic"

// FullMark remembers that file systems were nearly full until they have enough space again. A
// tenant does not count as the cause of space that was missing before it.
type FullMark struct{ full atomic.Bool }

// NearlyFull reports whether one of them is nearly full now.
func (m *FullMark) NearlyFull(g *Monitor) bool {
	full := g.NearlyFull()
	if full {
		m.full.Store(true)
	}
	return full
}

// HasRoom reports whether they have space for another tenant.
func (m *FullMark) HasRoom(g *Monitor) bool {
	if !m.NearlyFull(g) && g.HasEnough() {
		m.full.Store(false)
	}
	return !m.full.Load()
}
