package room

import (
	"sync/atomic"
	"time"
)

// measureTime is how long the use of a slot may take to measure.
const measureTime = 5 * time.Second

// Facts say whether a file system is nearly full, and whether that is the doing
// of others.
type Facts struct {
	NearlyFull bool  `json:"nearly_full"`
	ByOthers   bool  `json:"by_others"`
	FreeBytes  int64 `json:"free_bytes"`
	FreeFiles  int64 `json:"free_files"`
	UseBytes   int64 `json:"use_bytes"`
	UseFiles   int64 `json:"use_files"`
}

// Tree is a directory in which a slot's files are: those that were changed since
// then, or all of a zero time.
type Tree struct {
	Path  string
	Since time.Time
}

// Ground is the file systems that a slot shares with others and writes to. Those
// that are the slot's own, such as its /dev/shm, are none: only it can fill them.
type Ground struct{ parts atomic.Pointer[[]part] }

type part struct {
	path  string
	root  bool
	first Room // what was left when the slot had written nothing
}

// Survey looks at the file systems at these paths before the slot writes. root
// says that it may use what is reserved for root.
func (g *Ground) Survey(root bool, paths ...string) {
	var parts []part
	for _, path := range paths {
		if room, ok := At(path, root); ok {
			parts = append(parts, part{path, root, room})
		}
	}
	g.parts.Store(&parts)
}

// SurveyAgain does so when the slot is as at its beginning.
func (g *Ground) SurveyAgain() {
	parts := g.parts.Load()
	if parts == nil || len(*parts) == 0 {
		return
	}
	var paths []string
	for _, p := range *parts {
		paths = append(paths, p.path)
	}
	g.Survey((*parts)[0].root, paths...)
}

// HasEnough says whether all of them have enough room.
func (g *Ground) HasEnough() bool {
	parts := g.parts.Load()
	if parts == nil {
		return true
	}
	for _, p := range *parts {
		if room, ok := At(p.path, p.root); ok && !room.HasEnough() {
			return false
		}
	}
	return true
}

// NearlyFull says whether one of them is. It takes a few microseconds.
func (g *Ground) NearlyFull() bool {
	_, _, full := g.full()
	return full
}

func (g *Ground) full() (at part, now Room, full bool) {
	parts := g.parts.Load()
	if parts == nil {
		return part{}, Room{}, false
	}
	for _, p := range *parts {
		if room, ok := At(p.path, p.root); ok && room.NearlyFull() {
			return p, room, true
		}
	}
	return part{}, Room{}, false
}

// Judge says whose doing a full file system is: that of others where what the
// slot has, in these trees and in removed files that it holds open, is less than
// half of its share of what was left at its beginning, or next to nothing.
// neighbours is how many slots share it.
// refused says that a write of the slot was refused for a quota, of which file
// systems do not tell.
func (g *Ground) Judge(refused bool, neighbours int, held func() (Use, error), trees ...Tree) Facts {
	at, now, full := g.full()
	if parts := g.parts.Load(); !full && refused && parts != nil && len(*parts) > 0 {
		at, full = part{path: (*parts)[0].path, root: (*parts)[0].root}, true
		now, _ = At(at.path, at.root)
	}
	facts := Facts{NearlyFull: full, FreeBytes: now.Bytes, FreeFiles: now.Files}
	if !full {
		return facts
	}
	use, err := held()
	until, known := time.Now().Add(measureTime), err == nil
	for _, tree := range trees {
		known = use.Measure(tree.Path, tree.Since, until) == nil && known
	}
	facts.UseBytes, facts.UseFiles = use.Bytes, use.Files
	little, shares := now.Enough(), 2*int64(max(1, neighbours))
	facts.ByOthers = known && use.Bytes <= max(little.Bytes, at.first.Bytes/shares) &&
		(now.MostFiles == 0 || use.Files <= max(little.Files, at.first.Files/shares))
	return facts
}
