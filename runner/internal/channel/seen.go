package channel

import (
	"maps"
	"slices"
)

// maxGaps bounds the memory for a driver that leaves ids out.
const maxGaps = 4096

// seenIDs is the set of request ids that have arrived. Ids come in nearly increasing order, so
// almost all of the set is "everything up to floor".
type seenIDs struct {
	floor uint64
	above map[uint64]struct{}
}

func (s *seenIDs) has(id uint64) bool {
	if id <= s.floor {
		return true
	}
	_, ok := s.above[id]
	return ok
}

func (s *seenIDs) add(id uint64) {
	if id <= s.floor {
		return
	}
	if s.above == nil {
		s.above = map[uint64]struct{}{}
	}
	s.above[id] = struct{}{}
	s.settle()
	if len(s.above) > maxGaps {
		s.forgetGaps()
	}
}

// forgetGaps treats the lower half of the ids above floor, with the gaps in it, as seen.
func (s *seenIDs) forgetGaps() {
	ids := slices.Sorted(maps.Keys(s.above))
	s.floor = ids[len(ids)/2]
	for _, id := range ids[:len(ids)/2+1] {
		delete(s.above, id)
	}
	s.settle()
}

func (s *seenIDs) settle() {
	for {
		if _, ok := s.above[s.floor+1]; !ok {
			return
		}
		s.floor++
		delete(s.above, s.floor)
	}
}
