package shared

import (
	"sync"
	"time"

	"hermes-exec/runner/internal/users"
)

const (
	// maxLooks is how many entries of others a reset looks at. The rest is removed afterwards,
	// because the next holder has another uid.
	maxLooks = 5000
	// searchTimeout bounds the search if the next holder has the same uid.
	searchTimeout = 3 * time.Second
	// removeTimeout bounds the removal of the holder's files.
	removeTimeout = 10 * time.Second
	// finishTimeout bounds the last sweep.
	finishTimeout = 3 * time.Second
)

const incompleteProblem = "the shared directories could not be searched to the end, or contain files of the " +
	"slot's user that cannot be removed"

// Cleaner removes what slots leave in shared directories of one sandbox.
type Cleaner struct {
	ids      *users.Allocator
	openDirs func() []string

	mu           sync.Mutex
	image        bool // the slots see the image's files
	hasLeftovers bool // files of a holder may be left
	sweeping     bool
}

// New returns the Cleaner of a sandbox whose runner is at home, and whose configuration mounts
// asked.
func New(ids *users.Allocator, home string, asked []string) *Cleaner {
	return &Cleaner{ids: ids, openDirs: sync.OnceValue(func() []string { return findOpenDirs(home, asked) })}
}

// Find finds the open directories of the image. It must be called before there are tenants, who
// could make more of them.
func (p *Cleaner) Find() { p.openDirs() }

// Holder is a user of a slot whose processes have ended.
type Holder struct {
	UID, GID uint32
	Own      bool // nobody else, including the next holder, has the uid
	Image    bool // it saw the image's files
	Files    bool // it may have left files in shared directories
	Objects  bool // it may have left System V objects
}

// Remove removes files, keys and objects of a holder, and returns the problems. Files and objects
// of a uid of its own are no problem: the next holder cannot reach them, and their removal is tried
// again.
func (p *Cleaner) Remove(h Holder) (problems []string) {
	if h.Own {
		problems = removeKeys(h.UID, h.GID)
	}
	if h.Files {
		s := sweep{ids: p.ids, holder: h, looks: maxLooks, until: time.Now().Add(removeTimeout)}
		if !h.Own {
			s.looks, s.until = 0, time.Now().Add(searchTimeout)
		}
		s.run(p.dirs(h.Image))
		if h.Own && s.incomplete {
			p.sweepLater(h.Image)
		} else if s.incomplete {
			problems = append(problems, incompleteProblem)
		}
	}
	if h.Objects {
		problems = append(problems, p.removeObjects(h)...)
	}
	return problems
}

func (p *Cleaner) dirs(image bool) []string {
	if image {
		return p.openDirs()
	}
	return usualDirs()
}

// sweepLater removes the files of all holders whose processes have ended, in the background. Files
// that cannot be removed are tried again with a later reset.
func (p *Cleaner) sweepLater(image bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.hasLeftovers, p.image = true, image
	if p.sweeping {
		return
	}
	p.sweeping = true
	go func() {
		for again := true; again; {
			p.mu.Lock()
			p.hasLeftovers = false
			p.mu.Unlock()
			s := sweep{ids: p.ids, all: true, slow: true}
			s.run(p.dirs(image))
			p.mu.Lock()
			again = p.hasLeftovers
			p.hasLeftovers = p.hasLeftovers || s.incomplete
			p.sweeping = again
			p.mu.Unlock()
		}
	}()
}

// Finish removes the remaining files when all holders have ended.
func (p *Cleaner) Finish() {
	p.mu.Lock()
	left, image := p.hasLeftovers || p.sweeping, p.image
	p.mu.Unlock()
	if left {
		s := sweep{ids: p.ids, all: true, until: time.Now().Add(finishTimeout)}
		s.run(p.dirs(image))
	}
}
