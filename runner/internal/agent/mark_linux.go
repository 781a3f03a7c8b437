package agent

import (
	"crypto/rand"
	"encoding/binary"
	"strconv"
	"sync"

	"hermes-exec/runner/internal/isolate"
)

// mostMarks is how many commands of one agent can be told apart by marks.
const mostMarks = 1 << 20

// marks names commands by a resource limit that they inherit; see
// isolate.InheritMark. Marks go down, since none can be raised again.
type marks struct {
	mu    sync.Mutex // held over setting a mark and the fork that inherits it
	top   uint64     // 0: not in use
	token []uint64   // by how far below top the mark is
}

func (m *marks) init() {
	var raw [8]byte
	if _, err := rand.Read(raw[:]); err != nil || !isolate.CanMark() {
		return
	}
	m.top = 1<<62 + binary.NativeEndian.Uint64(raw[:])>>4&^(mostMarks-1)
}

// fork forks with a mark of its own for token.
func (m *marks) fork(token uint64, fork func() (int, error)) (int, error) {
	if m.top == 0 {
		return fork()
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.token) < mostMarks-1 && isolate.InheritMark(m.top-uint64(len(m.token))) == nil {
		m.token = append(m.token, token)
	}
	return fork()
}

// of reads the mark of a process: which command it is part of.
func (m *marks) of(pid int) (uint64, bool) {
	if m.top == 0 {
		return 0, false
	}
	var buf [4096]byte
	value, ok := isolate.ReadMark(slurp("/proc/"+strconv.Itoa(pid)+"/limits", buf[:]))
	if !ok || value > m.top {
		return 0, false
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	below := m.top - value
	if below >= uint64(len(m.token)) {
		return 0, false
	}
	return m.token[below], true
}
