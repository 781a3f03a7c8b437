package memory

import (
	"os"
	"strconv"
	"strings"
	"sync"
)

// commandOOMScore makes a command the kernel's first choice when memory runs out: it is killed
// before its agent, with which the whole slot ends, and an agent before the serving runner. The
// unit is a thousandth of all memory.
const commandOOMScore = 1000

// Score is this process's /proc/self/oom_score_adj. A command inherits the score of its agent at
// the fork.
type Score struct {
	mu    sync.Mutex
	file  *os.File // nil: the score cannot be changed
	own   int
	forks int
}

// Init must be called while this process may still write its own score: an undumpable process
// without privileges may not.
func (s *Score) Init() {
	file, err := os.OpenFile("/proc/self/oom_score_adj", os.O_RDWR, 0)
	if err != nil {
		return
	}
	var text [16]byte
	n, _ := file.Read(text[:])
	runners, err := strconv.Atoi(strings.TrimSpace(string(text[:n])))
	if err != nil {
		_ = file.Close()
		return
	}
	s.file, s.own = file, (runners+commandOOMScore)/2
	s.set(s.own)
}

// Raise makes processes that are forked until Lower the kernel's first choice.
func (s *Score) Raise() { s.enter(1) }

// Lower is called after the fork.
func (s *Score) Lower() { s.enter(-1) }

func (s *Score) enter(more int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	before := s.forks
	s.forks += more
	switch {
	case s.file == nil:
	case before == 0:
		s.set(commandOOMScore)
	case s.forks == 0:
		s.set(s.own)
	}
}

// set keeps the score if it cannot be changed: then a command and its agent have the same score.
func (s *Score) set(to int) {
	if _, err := s.file.WriteString(strconv.Itoa(to)); err != nil {
		_ = s.file.Close()
		s.file = nil
	}
}
