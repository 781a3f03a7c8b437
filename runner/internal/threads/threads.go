package threads

import "runtime"

// Start runs work on n threads of its own once all are prepared. It returns the first error of
// prepare.
func Start(n int, prepare func() error, work func(i int)) error {
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

// Pool is a fixed number of prepared threads.
type Pool struct{ jobs chan func() }

// NewPool makes n threads. It returns the first error of prepare.
func NewPool(n int, prepare func() error) (*Pool, error) {
	p := &Pool{jobs: make(chan func())}
	return p, Start(n, prepare, func(int) {
		for job := range p.jobs {
			job()
		}
	})
}

// Do runs f on one of the threads and waits for it.
func (p *Pool) Do(f func()) {
	done := make(chan struct{})
	p.jobs <- func() {
		defer close(done)
		f()
	}
	<-done
}
