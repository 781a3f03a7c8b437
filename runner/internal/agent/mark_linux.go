package agent

import (
	"crypto/rand"
	"encoding/binary"
	"maps"
	"strconv"
	"sync"

	"hermes-exec/runner/internal/isolate"
)

// marks names commands by a resource limit that they inherit; see
// isolate.InheritMark. Marks go down, since none can be raised again.
type marks struct {
	mu    sync.Mutex // held over setting a mark and the fork that inherits it
	top   uint64     // 0: not in use
	used  uint64
	token map[uint64]uint64 // by how far below top the mark is: of the newest commands and of those that are known
	prune int               // when there are so many
	known func(token uint64) bool
}

func (m *marks) init(known func(token uint64) bool) {
	var raw [8]byte
	if _, err := rand.Read(raw[:]); err != nil || !isolate.CanMark() {
		return
	}
	// There is so much room that agents of one user do not come near each other.
	m.begin(1<<62+binary.NativeEndian.Uint64(raw[:])>>4, known)
}

func (m *marks) begin(top uint64, known func(token uint64) bool) {
	m.top, m.token, m.prune, m.known = top, map[uint64]uint64{}, 2*keptEnded, known
}

// fork forks with a mark of its own for token.
func (m *marks) fork(token uint64, fork func() (int, error)) (int, error) {
	if m.top == 0 {
		return fork()
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if isolate.InheritMark(m.top-m.used) == nil {
		m.add(token)
	}
	return fork()
}

// add gives the next mark to token, and forgets commands that have ended.
func (m *marks) add(token uint64) {
	m.token[m.used] = token
	m.used++
	if len(m.token) < m.prune {
		return
	}
	maps.DeleteFunc(m.token, func(below, token uint64) bool { return below+keptEnded < m.used && !m.known(token) })
	m.prune = 2 * max(keptEnded, len(m.token))
}

// of reads the mark of a process: whether it is of this agent, and which
// command it is part of, 0 if that is not known any more.
func (m *marks) of(pid int) (token uint64, ours bool) {
	if m.top == 0 {
		return 0, false
	}
	var buf [4096]byte
	value, ok := isolate.ReadMark(slurp("/proc/"+strconv.Itoa(pid)+"/limits", buf[:]))
	if !ok {
		return 0, false
	}
	return m.named(value)
}

func (m *marks) named(value uint64) (token uint64, ours bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if value > m.top || m.top-value >= m.used {
		return 0, false
	}
	return m.token[m.top-value], true
}
