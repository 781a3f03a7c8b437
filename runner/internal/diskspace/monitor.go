package diskspace

import (
	"sync/atomic"
	"time"
)

// measureTimeout bounds the measuring of a slot's use.
const measureTimeout = 5 * time.Second

// Facts describe whether a file system is nearly full, and whether other slots have filled it.
type Facts struct {
	NearlyFull bool  `json:"nearly_full"`
	ByOthers   bool  `json:"by_others"`
	FreeBytes  int64 `json:"free_bytes"`
	FreeFiles  int64 `json:"free_files"`
	UseBytes   int64 `json:"use_bytes"`
	UseFiles   int64 `json:"use_files"`
}

// Monitor watches the file systems that a slot writes to and shares with others. File systems of
// the slot's own, such as its /dev/shm, are not included: only the slot can fill them.
type Monitor struct{ survey atomic.Pointer[survey] }

type survey struct {
	at          time.Time
	fileSystems []fileSystem
}

type fileSystem struct {
	path    string
	root    bool
	initial Space // the free space at the survey
}

// Survey records the free space of the file systems at these paths before the slot's tenant writes.
// root means that the slot may use space that is reserved for root.
func (g *Monitor) Survey(root bool, paths ...string) {
	result := survey{at: time.Now()}
	for _, path := range paths {
		if room, ok := At(path, root); ok {
			result.fileSystems = append(result.fileSystems, fileSystem{path, root, room})
		}
	}
	g.survey.Store(&result)
}

// SurveyAgain repeats the survey when the slot is ready for its tenant.
func (g *Monitor) SurveyAgain() {
	parts := g.fileSystems()
	if len(parts) == 0 {
		return
	}
	var paths []string
	for _, p := range parts {
		paths = append(paths, p.path)
	}
	g.Survey(parts[0].root, paths...)
}

func (g *Monitor) fileSystems() []fileSystem {
	if s := g.survey.Load(); s != nil {
		return s.fileSystems
	}
	return nil
}

// HasEnough reports whether all of them have enough space.
func (g *Monitor) HasEnough() bool {
	for _, p := range g.fileSystems() {
		if room, ok := At(p.path, p.root); ok && !room.HasEnough() {
			return false
		}
	}
	return true
}

// NearlyFull reports whether one of them is nearly full. It takes a few microseconds.
func (g *Monitor) NearlyFull() bool {
	_, _, full := g.findFull()
	return full
}

func (g *Monitor) findFull() (at fileSystem, now Space, full bool) {
	for _, p := range g.fileSystems() {
		if room, ok := At(p.path, p.root); ok && room.NearlyFull() {
			return p, room, true
		}
	}
	return fileSystem{}, Space{}, false
}

// FindCause reports whether others have filled a file system. They have if the slot uses less than
// half of its share of the space at the survey, or next to nothing. Its use is the files that it
// changed since the survey in the directories at these paths, and the removed files that it holds
// open. neighbours is how many slots share the file system. refused means that a quota refused a
// write of the slot, which file systems do not report.
func (g *Monitor) FindCause(refused bool, neighbours int, held func() (Usage, error), paths ...string) Facts {
	at, now, full := g.findFull()
	if parts := g.fileSystems(); !full && refused && len(parts) > 0 {
		at, full = fileSystem{path: parts[0].path, root: parts[0].root}, true
		now, _ = At(at.path, at.root)
	}
	facts := Facts{NearlyFull: full, FreeBytes: now.Bytes, FreeFiles: now.Files}
	if !full {
		return facts
	}
	use, err := held()
	until, complete := time.Now().Add(measureTimeout), err == nil
	for _, path := range paths {
		complete = use.Measure(path, g.survey.Load().at, until) == nil && complete
	}
	facts.UseBytes, facts.UseFiles = use.Bytes, use.Files
	little, shares := now.EnoughLimit(), 2*int64(max(1, neighbours))
	facts.ByOthers = complete && use.Bytes <= max(little.Bytes, at.initial.Bytes/shares) &&
		(now.MaxFiles == 0 || use.Files <= max(little.Files, at.initial.Files/shares))
	return facts
}
