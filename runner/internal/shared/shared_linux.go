package shared

import (
	"sync"
	"time"

	"hermes-exec/runner/internal/users"
)

const (
	// maxLooks is how many entries of others a reset looks at. What it did not
	// come to is removed afterwards: the next holder has another uid.
	maxLooks = 5000
	// searchTimeout is how long it looks where the next holder has the same uid.
	searchTimeout = 3 * time.Second
	// removeTimeout is how long it removes what its holder has left.
	removeTimeout = 10 * time.Second
	// finishTimeout bounds the last sweep.
	finishTimeout = 3 * time.Second
)

const incompleteProblem = "the shared directories could not be searched to the end, or hold files of the " +
	"slot's user that cannot be removed"

// Places are those of a sandbox in which slots may leave files.
type Cleaner struct {
	ids      *users.Allocator
	openDirs func() []string

	mu           sync.Mutex
	image        bool // the slots see the image's files
	hasLeftovers bool // something that a holder has left may be there
	sweeping     bool
}

// New makes the Places of a sandbox whose runner is at home, and whose
// configuration mounts asked.
func New(ids *users.Allocator, home string, asked []string) *Cleaner {
	return &Cleaner{ids: ids, openDirs: sync.OnceValue(func() []string { return findOpenDirs(home, asked) })}
}

// Find looks for the open directories of the image. It is called before there
// are tenants, who would make more of them.
func (p *Cleaner) Find() { p.openDirs() }

// Holder is one whose processes are gone.
type Holder struct {
	UID, GID uint32
	Own      bool // the uid is nobody else's, also not the next holder's
	Image    bool // it saw the image's files
	Files    bool // it may have left files with others
	Objects  bool // and System V objects
}

// Remove removes what a holder has left, and returns what it cannot. Files and
// objects of a uid of its own are not among that: the next holder cannot reach
// them, and they are tried again.
func (p *Cleaner) Remove(h Holder) (problems []string) {
	if h.Own {
		problems = clearKeys(h.UID, h.GID)
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

// sweepLater removes what all holders who are gone have left, beside other work.
// What cannot be removed then is tried again with a later reset.
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

// Finish removes what is left when all holders are gone.
func (p *Cleaner) Finish() {
	p.mu.Lock()
	left, image := p.hasLeftovers || p.sweeping, p.image
	p.mu.Unlock()
	if left {
		s := sweep{ids: p.ids, all: true, until: time.Now().Add(finishTimeout)}
		s.run(p.dirs(image))
	}
}
