package budget

import "sync"

const (
	// MaxEnded is how many ended processes of a slot are remembered.
	MaxEnded = 64
	// MaxEndedBytes is the memory that their output may take.
	MaxEndedBytes = 16 << 20
)

// EndedProcess is an ended process whose output is kept.
type EndedProcess interface {
	// Memory returns the memory that its output takes, in bytes.
	Memory() int64
	// DropOutput frees that memory and returns how much it was.
	DropOutput() int64
}

type record struct {
	slot    any
	process EndedProcess
}

// History holds the remembered processes of all slots.
type History struct {
	mu      sync.Mutex
	records []record // in the order in which they ended
}

// Add remembers a process that has just ended. If the processes of a slot have too much output, the
// output of the oldest is dropped. Processes beyond MaxEnded are forgotten and returned.
func (h *History) Add(slot any, entry EndedProcess) (forgotten []EndedProcess) {
	h.mu.Lock()
	h.records = append(h.records, record{slot, entry})
	var own []EndedProcess
	for _, r := range h.records {
		if r.slot == slot {
			own = append(own, r.process)
		}
	}
	if many := len(own) - MaxEnded; many > 0 {
		forgotten, own = own[:many], own[many:]
		h.remove(func(r record) bool {
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
		if bytes += own[i].Memory(); bytes > MaxEndedBytes {
			bytes -= own[i].DropOutput()
		}
	}
	return forgotten
}

func (h *History) remove(gone func(record) bool) {
	kept := h.records[:0]
	for _, r := range h.records {
		if !gone(r) {
			kept = append(kept, r)
		}
	}
	clear(h.records[len(kept):])
	h.records = kept
}

// Remove forgets one process.
func (h *History) Remove(entry EndedProcess) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.remove(func(r record) bool { return r.process == entry })
}

// Forget forgets the processes of a slot.
func (h *History) Forget(slot any) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.remove(func(r record) bool { return r.slot == slot })
}

// Reclaim drops output until need bytes are freed, always the oldest output of the slot that uses
// most memory. It spares the last process of each slot and all processes of a slot that uses at
// most share. It updates use.
func (h *History) Reclaim(need int64, use map[any]int64, share int64) (freed int64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	own := map[any][]EndedProcess{}
	for _, r := range h.records {
		own[r.slot] = append(own[r.slot], r.process)
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
