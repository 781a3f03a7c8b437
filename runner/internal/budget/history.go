package budget

import "sync"

const (
	// MostEnded is how many ended processes of a slot are remembered.
	MostEnded = 64
	// MostEndedBytes is how much memory their output may take.
	MostEndedBytes = 16 << 20
)

// Entry is an ended process whose output is kept.
type Entry interface {
	// Memory is how many bytes of memory its output takes.
	Memory() int64
	// DropOutput frees them, and says how many there were.
	DropOutput() int64
}

type remembered struct {
	slot  any
	entry Entry
}

// History is what is remembered of processes that have ended, of all slots.
type History struct {
	mu  sync.Mutex
	all []remembered // the one that ended first is the first
}

// Add remembers an entry that has ended now. The output of a slot's oldest is
// dropped when they have too much of it; those of which there are too many are
// forgotten, and returned.
func (h *History) Add(slot any, entry Entry) (forgotten []Entry) {
	h.mu.Lock()
	h.all = append(h.all, remembered{slot, entry})
	var own []Entry
	for _, r := range h.all {
		if r.slot == slot {
			own = append(own, r.entry)
		}
	}
	if many := len(own) - MostEnded; many > 0 {
		forgotten, own = own[:many], own[many:]
		h.remove(func(r remembered) bool {
			if r.slot == slot && many > 0 {
				many--
				return true
			}
			return false
		})
	}
	h.mu.Unlock()
	bytes := int64(0)
	for i := len(own) - 1; i >= 0; i-- {
		if bytes += own[i].Memory(); bytes > MostEndedBytes {
			bytes -= own[i].DropOutput()
		}
	}
	return forgotten
}

func (h *History) remove(gone func(remembered) bool) {
	kept := h.all[:0]
	for _, r := range h.all {
		if !gone(r) {
			kept = append(kept, r)
		}
	}
	clear(h.all[len(kept):])
	h.all = kept
}

// Forget forgets those of a slot.
func (h *History) Forget(slot any) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.remove(func(r remembered) bool { return r.slot == slot })
}

// Reclaim drops output until need bytes were freed: always the oldest of the
// slot that uses the most. What ended last in a slot stays, and all of a slot
// that uses no more than share; use is brought up to date.
func (h *History) Reclaim(need int64, use map[any]int64, share int64) (freed int64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	own := map[any][]Entry{}
	for _, r := range h.all {
		own[r.slot] = append(own[r.slot], r.entry)
	}
	for freed < need {
		var most any
		for slot, entries := range own {
			if len(entries) > 1 && use[slot] > max(share, use[most]) {
				most = slot
			}
		}
		if most == nil {
			break
		}
		n := own[most][0].DropOutput()
		own[most], use[most], freed = own[most][1:], use[most]-n, freed+n
	}
	return freed
}
