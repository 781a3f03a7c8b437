// Package shared removes what slots leave in places that they share with others:
// files, by their owners, keys and System V objects.
package shared

import (
	"sync"
	"time"

	"hermes-exec/runner/internal/users"
)

const (
	// mostLooks is how many entries of others a reset looks at. What it did not
	// come to is removed afterwards: the next holder has another uid.
	mostLooks = 5000
	// searchTime is how long it looks where the next holder has the same uid.
	searchTime = 3 * time.Second
	// removeTime is how long it removes what its holder has left.
	removeTime = 10 * time.Second
	// finishTime bounds the last sweep.
	finishTime = 3 * time.Second
)

const notAll = "the shared directories could not be searched to the end, or hold files of the slot's user that " +
	"cannot be removed"

// Places are those of a sandbox in which slots may leave files.
type Places struct {
	ids  *users.Allocator
	open func() []string

	mu       sync.Mutex
	image    bool // the slots see the image's files
	left     bool // something that a holder has left may be there
	sweeping bool
}

// New makes the Places of a sandbox whose runner is at home, and whose
// configuration mounts asked.
func New(ids *users.Allocator, home string, asked []string) *Places {
	return &Places{ids: ids, open: sync.OnceValue(func() []string { return findOpen(home, asked) })}
}

// Find looks for the open directories of the image. It is called before there
// are tenants, who would make more of them.
func (p *Places) Find() { p.open() }

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
func (p *Places) Remove(h Holder) (problems []string) {
	if h.Own {
		problems = clearKeys(h.UID, h.GID)
	}
	if h.Files {
		s := sweep{ids: p.ids, holder: h, looks: mostLooks, until: time.Now().Add(removeTime)}
		if !h.Own {
			s.looks, s.until = 0, time.Now().Add(searchTime)
		}
		s.run(p.list(h.Image))
		if h.Own && s.left {
			p.sweepLater(h.Image)
		} else if s.left {
			problems = append(problems, notAll)
		}
	}
	if h.Objects {
		problems = append(problems, p.removeObjects(h)...)
	}
	return problems
}

func (p *Places) list(image bool) []string {
	if image {
		return p.open()
	}
	return usualPlaces()
}

// sweepLater removes what all holders who are gone have left, beside other work.
// What cannot be removed then is tried again with a later reset.
func (p *Places) sweepLater(image bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.left, p.image = true, image
	if p.sweeping {
		return
	}
	p.sweeping = true
	go func() {
		for again := true; again; {
			p.mu.Lock()
			p.left = false
			p.mu.Unlock()
			s := sweep{ids: p.ids, all: true, slow: true}
			s.run(p.list(image))
			p.mu.Lock()
			again = p.left
			p.left = p.left || s.left
			p.sweeping = again
			p.mu.Unlock()
		}
	}()
}

// Finish removes what is left when all holders are gone.
func (p *Places) Finish() {
	p.mu.Lock()
	left, image := p.left || p.sweeping, p.image
	p.mu.Unlock()
	if left {
		s := sweep{ids: p.ids, all: true, until: time.Now().Add(finishTime)}
		s.run(p.list(image))
	}
}
