package link

import (
	"context"
	"os"
	"sync"

	"hermes-exec/runner/internal/ipc"
)

const (
	// spawnLaneCount is how many commands of a slot can be forked at the same time.
	spawnLaneCount = 2
	// fileLaneCount is how many operations on a single file can run at once, and treeLaneCount how
	// many of those that may walk whole trees, for minutes.
	fileLaneCount = 4
	treeLaneCount = 2
	// spillLaneCount keeps the output of commands from waiting for file operations.
	spillLaneCount = 1
)

// singleFileMethods are the file operations that do not walk through trees.
var singleFileMethods = map[string]bool{"file.read": true, "file.write": true, "file.stat": true, "file.mkdir": true,
	"file.chmod": true, "file.list": true}

// lanes are links that lead to one thread of the agent each. The lane that was used last is used
// first, because its thread is warm.
//
// Not the obvious code: see docs/why-not-obvious.md ("Lanes to prepared threads").
type lanes struct {
	tokens chan struct{} // one token for each free lane
	mu     sync.Mutex
	free   []*ipc.Conn
	all    []*ipc.Conn
	closed bool
}

// open makes n lanes beside conn and returns the agent's ends, also with an error.
func (l *lanes) open(conn *ipc.Conn, n int) (theirs []*os.File, err error) {
	l.tokens = make(chan struct{}, n)
	for range n {
		ours, their, err := ipc.Pair()
		if err != nil {
			return theirs, err
		}
		theirs = append(theirs, their)
		var lane *ipc.Conn
		// Nothing settles before the first call.
		if lane, err = conn.NewLane(ours, func() { l.release(lane) }); err != nil {
			return theirs, err
		}
		go func() { _ = lane.Run(nil, nil) }()
		l.add(lane)
		l.release(lane)
	}
	return theirs, nil
}

func (l *lanes) add(lane *ipc.Conn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.all = append(l.all, lane)
	if l.closed {
		lane.Close()
	}
}

// acquire returns a free lane. The lane is free again when the agent is done with the call, which
// may be later than the return of a call that was given up.
func (l *lanes) acquire(ctx context.Context) (*ipc.Conn, error) {
	select {
	case <-l.tokens:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	last := len(l.free) - 1
	lane := l.free[last]
	l.free = l.free[:last]
	return lane, nil
}

func (l *lanes) release(lane *ipc.Conn) {
	l.mu.Lock()
	l.free = append(l.free, lane)
	l.mu.Unlock()
	l.tokens <- struct{}{}
}

func (l *lanes) close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closed = true
	for _, lane := range l.all {
		lane.Close()
	}
}
