package initproc

import (
	"runtime"
	"runtime/debug"
	"time"
)

const (
	// quietTime without use is when memory is given back to the system.
	quietTime = 3 * time.Second
	// worthwhile is how much must have been taken since.
	worthwhile = 1 << 20
)

// FreeMemory gives back to the system what is not used, pools too, which last
// until the second collection.
func FreeMemory() {
	runtime.GC()
	debug.FreeOSMemory()
	forgetProgram()
}

// Quiet frees memory some seconds after the last use: that of its own work when
// much was taken.
type Quiet struct {
	timer *time.Timer
	least uint64
}

// NewQuiet measures from what this process holds now.
func NewQuiet() *Quiet {
	forgetPeak()
	q := &Quiet{least: held()}
	q.timer = time.AfterFunc(quietTime, q.free)
	return q
}

// Used puts it off.
func (q *Quiet) Used() { q.timer.Reset(quietTime) }

func (q *Quiet) free() {
	if held() < q.least+worthwhile {
		forgetProgram()
		return
	}
	FreeMemory()
	forgetPeak()
	q.least = held()
}

// held is the heap that the system has given and not got back.
func held() uint64 {
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapSys - m.HeapReleased + m.StackSys
}
