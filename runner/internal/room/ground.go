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

// Ground is the file systems that a slot shares with others and writes to. Those
// that are the slot's own, such as its /dev/shm, are none: only it can fill them.
type Ground struct{ survey atomic.Pointer[survey] }

type survey struct {
	at    time.Time
	parts []part
}

type part struct {
	path  string
	root  bool
	first Room // what was left at the survey
}

// Survey looks at the file systems at these paths before the slot's tenant writes:
// what is there is not the tenant's. root says that it may use what is reserved for
// root.
func (g *Ground) Survey(root bool, paths ...string) {
	found := survey{at: time.Now()}
	for _, path := range paths {
		if room, ok := At(path, root); ok {
			found.parts = append(found.parts, part{path, root, room})
		}
	}
	g.survey.Store(&found)
}

// SurveyAgain does so when the slot is as its tenant gets it.
func (g *Ground) SurveyAgain() {
	parts := g.parts()
	if len(parts) == 0 {
		return
	}
	var paths []string
	for _, p := range parts {
		paths = append(paths, p.path)
	}
	g.Survey(parts[0].root, paths...)
}

func (g *Ground) parts() []part {
	if s := g.survey.Load(); s != nil {
		return s.parts
	}
	return nil
}

// HasEnough says whether all of them have enough room.
func (g *Ground) HasEnough() bool {
	for _, p := range g.parts() {
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
	for _, p := range g.parts() {
		if room, ok := At(p.path, p.root); ok && room.NearlyFull() {
			return p, room, true
		}
	}
	return part{}, Room{}, false
}

// Judge says whose doing a full file system is: that of others where what the
// slot has changed since the survey in the directories at these paths, and has in
// removed files that it holds open, is less than half of its share of what was left
// then, or next to nothing. neighbours is how many slots share it. refused says
// that a write of the slot was refused for a quota, of which file systems do not
// tell.
func (g *Ground) Judge(refused bool, neighbours int, held func() (Use, error), paths ...string) Facts {
	at, now, full := g.full()
	if parts := g.parts(); !full && refused && len(parts) > 0 {
		at, full = part{path: parts[0].path, root: parts[0].root}, true
		now, _ = At(at.path, at.root)
	}
	facts := Facts{NearlyFull: full, FreeBytes: now.Bytes, FreeFiles: now.Files}
	if !full {
		return facts
	}
	use, err := held()
	until, known := time.Now().Add(measureTime), err == nil
	for _, path := range paths {
		known = use.Measure(path, g.survey.Load().at, until) == nil && known
	}
	facts.UseBytes, facts.UseFiles = use.Bytes, use.Files
	little, shares := now.Enough(), 2*int64(max(1, neighbours))
	facts.ByOthers = known && use.Bytes <= max(little.Bytes, at.first.Bytes/shares) &&
		(now.MostFiles == 0 || use.Files <= max(little.Files, at.first.Files/shares))
	return facts
}
