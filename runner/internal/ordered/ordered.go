package ordered

import "sync"

// Requests orders the requests on things with names. The zero value is ready.
type Requests struct {
	mu  sync.Mutex
	all map[string]*requests
}

type requests struct {
	mu   sync.Mutex // held while one of them is carried out
	last uint64     // the highest number of a request that has begun
}

// Begin waits until the requests on a thing that are under way have ended, and begins the one with a
// number; done ends it. If a request with a higher number has begun, done is nil.
func (r *Requests) Begin(name string, number uint64) (done func()) {
	r.mu.Lock()
	if r.all == nil {
		r.all = map[string]*requests{}
	}
	one := r.all[name]
	if one == nil {
		one = &requests{}
		r.all[name] = one
	}
	r.mu.Unlock()
	one.mu.Lock()
	if one.last > number {
		one.mu.Unlock()
		return nil
	}
	one.last = number
	return one.mu.Unlock
}
