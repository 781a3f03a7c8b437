package agent

import "runtime"

// pool is a fixed number of threads that were prepared alike (credentials,
// Landlock, cgroup: what the kernel keeps per thread).
type pool struct{ jobs chan func() }

// newPool makes n threads; the first failure to prepare one is returned.
func newPool(n int, prepare func() error) (*pool, error) {
	p := &pool{jobs: make(chan func())}
	return p, startThreads(n, prepare, func(int) {
		for job := range p.jobs {
			job()
		}
	})
}

// startThreads starts work on n threads of its own, once all are prepared; the
// first failure to prepare one is returned.
func startThreads(n int, prepare func() error, work func(i int)) error {
	ready := make(chan error, n)
	for i := range n {
		go func() {
			// Never unlocked: a thread that is not like others is not shared.
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

// do runs f on one of the threads and waits for it.
func (p *pool) do(f func()) {
	done := make(chan struct{})
	p.jobs <- func() {
		defer close(done)
		f()
	}
	<-done
}
