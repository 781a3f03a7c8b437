package initproc

import (
	"runtime"
	"runtime/debug"
	"sync"
	"time"
)

const (
	// quietTime without use is when memory is given back to the system.
	quietTime = 3 * time.Second
	// worthwhile is by how much the heap must have grown to be freed, in bytes.
	worthwhile = 1 << 20
)

// FreeMemory gives back to the system what is not used, pools too, which last
// until the second collection.
func FreeMemory() {
	runtime.GC()
	debug.FreeOSMemory()
	forgetProgram()
}

// Quiet frees memory some seconds after the last use: the program's pages
// always, the heap the first time and when it has grown much since.
type Quiet struct {
	timer *time.Timer
	mu    sync.Mutex // held while memory is freed
	least uint64
}

// NewQuiet begins with this process as it is when it is ready.
func NewQuiet() *Quiet {
	forgetPeak()
	q := &Quiet{}
	q.timer = time.AfterFunc(quietTime, q.free)
	return q
}

// Used postpones the freeing.
func (q *Quiet) Used() { q.timer.Reset(quietTime) }

func (q *Quiet) free() {
	if !q.mu.TryLock() {
		return
	}
	defer q.mu.Unlock()
	if held() < q.least+worthwhile {
		forgetProgram()
		return
	}
	FreeMemory()
	forgetPeak()
	q.least = held()
}

// held is the memory of heap and stacks that was not given back to the system.
func held() uint64 {
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapSys - m.HeapReleased + m.StackSys
}
