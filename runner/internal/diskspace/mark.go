package diskspace

import "sync/atomic"

// Mark remembers that file systems were nearly full, until they have enough room
// again: what a tenant leaves, and the next one takes, is none.
type FullMark struct{ full atomic.Bool }

// NearlyFull says whether one of them is now.
func (m *FullMark) NearlyFull(g *Monitor) bool {
	full := g.NearlyFull()
	if full {
		m.full.Store(true)
	}
	return full
}

// HasRoom says whether they have room for another tenant.
func (m *FullMark) HasRoom(g *Monitor) bool {
	if !m.NearlyFull(g) && g.HasEnough() {
		m.full.Store(false)
	}
	return !m.full.Load()
}
