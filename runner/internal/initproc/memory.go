package initproc

import (
	"runtime"
	"runtime/debug"
	"sync"
	"time"
)

const (
	// idleDelay without use is when memory is given back to the system.
	idleDelay = 3 * time.Second
	// worthwhile is by how much the heap must have grown to be freed, in bytes.
	minGrowth = 1 << 20
)

// FreeMemory gives back to the system what is not used, pools too, which last
// until the second collection.
func FreeMemory() {
	runtime.GC()
	debug.FreeOSMemory()
	dropProgramPages()
}

// Quiet frees memory some seconds after the last use: the program's pages
// always, the heap the first time and when it has grown much since.
type IdleTrimmer struct {
	timer    *time.Timer
	mu       sync.Mutex // held while memory is freed
	baseline uint64
}

// NewIdleTrimmer begins with this process as it is when it is ready.
func NewIdleTrimmer() *IdleTrimmer {
	resetPeak()
	q := &IdleTrimmer{}
	q.timer = time.AfterFunc(idleDelay, q.free)
	return q
}

// Touch postpones the freeing.
func (q *IdleTrimmer) Touch() { q.timer.Reset(idleDelay) }

func (q *IdleTrimmer) free() {
	if !q.mu.TryLock() {
		return
	}
	defer q.mu.Unlock()
	if heapInUse() < q.baseline+minGrowth {
		dropProgramPages()
		return
	}
	FreeMemory()
	resetPeak()
	q.baseline = heapInUse()
}

// heapInUse is the memory of heap and stacks that was not given back to the system.
func heapInUse() uint64 {
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapSys - m.HeapReleased + m.StackSys
}
