package agent

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

// do runs f on one of the threads and waits for it.
func (p *pool) do(f func()) {
	done := make(chan struct{})
	p.jobs <- func() {
		defer close(done)
		f()
	}
	<-done
}
