package initproc

import (
	"runtime"
	"runtime/debug"
	"sync"
	"time"
)

const (
	// idleDelay is the time without use after which memory is returned to the system.
	idleDelay = 3 * time.Second
	// minGrowth is how much the heap must have grown to be freed, in bytes.
	minGrowth = 1 << 20
)

// FreeMemory returns unused memory to the system, including pools, which last until the second
// collection.
func FreeMemory() {
	runtime.GC()
	debug.FreeOSMemory()
	dropProgramPages()
}

// IdleTrimmer frees memory some seconds after the last use: the program's pages always, the heap
// the first time and after it has grown much.
//
// Not the obvious code: see docs/why-not-obvious.md ("Memory of idle agents").
type IdleTrimmer struct {
	timer    *time.Timer
	mu       sync.Mutex // held while memory is freed
	baseline uint64
}

// NewIdleTrimmer makes an IdleTrimmer for this process, which must be ready for use.
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

// heapInUse returns the memory of heap and stacks that was not returned to the system.
func heapInUse() uint64 {
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapSys - m.HeapReleased + m.StackSys
}
