package initproc

import (
	"math"
	"os"
	"os/signal"
	"runtime"
	"runtime/debug"
	"slices"
	"sync"
	"syscall"
)

// Options are the options of Init.
type Options struct {
	Threads   int   // parked threads to make now; 0 for none
	Procs     int   // GOMAXPROCS; 0 leaves the runtime's choice
	GCPercent int   // 0 leaves the runtime's choice
	Memory    int64 // heap size in bytes above which the collector runs more often; 0 for no limit
	Subreaper bool  // orphans below this process become its children
}

// Init must be called first in main.
func Init(o Options) {
	protect(o.Subreaper)
	debug.SetMaxThreads(math.MaxInt32)
	if o.GCPercent > 0 {
		debug.SetGCPercent(o.GCPercent)
	}
	if o.Memory > 0 {
		debug.SetMemoryLimit(o.Memory)
	}
	if o.Procs > 0 {
		runtime.GOMAXPROCS(o.Procs)
	}
	startThreads(o.Threads)
}

// ReserveThreads makes n threads exist besides those that goroutines have locked, because later
// ones may be refused.
func ReserveThreads(n int) { startThreads(n) }

// startThreads makes n threads exist at once. The runtime parks an idle thread and never ends it.
func startThreads(n int) {
	if n <= 0 {
		return
	}
	var ready, done sync.WaitGroup
	ready.Add(n)
	done.Add(n)
	release := make(chan struct{})
	for range n {
		go func() {
			defer done.Done()
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			ready.Done()
			<-release
		}()
	}
	ready.Wait()
	close(release)
	done.Wait()
}

// HandleSignals handles every signal that can be handled, so that none ends this process, and
// ignores them. It uses handlers, because a signal that is set to "ignore" stays ignored in
// children.
func HandleSignals() { handleAllBut() }

// HandleTerminations is HandleSignals, but delivers every SIGTERM.
func HandleTerminations() <-chan Termination {
	handleAllBut(syscall.SIGTERM)
	out := make(chan Termination, 1)
	receiveTerminations(out)
	return out
}

func handleAllBut(left ...syscall.Signal) {
	var all []os.Signal
	for n := syscall.Signal(1); n <= lastSignal; n++ {
		switch n {
		case syscall.SIGKILL, syscall.SIGSTOP, syscall.SIGCHLD, syscall.SIGURG, syscall.SIGPROF:
		default:
			if (n < 32 || n > 34) && !slices.Contains(left, n) {
				all = append(all, n)
			}
		}
	}
	in := make(chan os.Signal, 64)
	signal.Notify(in, all...)
	ignore(32, 34) // the runtime does not handle these
	go func() {
		for range in { // a full channel would do as well
		}
	}()
}
