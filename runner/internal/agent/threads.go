package agent

import "runtime"

// startThreads starts work on n threads of its own, once all are prepared; the
// first failure to prepare one is returned.
func startThreads(n int, prepare func() error, work func(i int)) error {
	ready := make(chan error, n)
	for i := range n {
		go func() {
			// Never unlocked: a thread with settings of its own is not shared.
			runtime.LockOSThread()
			err := prepare()
			ready <- err
			if err == nil {
				work(i)
			}
		}()
	}
	var first error
	for range n {
		if err := <-ready; err != nil && first == nil {
			first = err
		}
	}
	return first
}
