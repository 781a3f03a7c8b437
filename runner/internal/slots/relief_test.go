package slots

import (
	"testing"
	"time"

	"hermes-exec/runner/internal/cgroup"
)

func TestReliefComesOnceForAllAndGoesWithTheLast(t *testing.T) {
	joins := []cgroup.Join{{Controller: "cpu", Dir: t.TempDir()}}
	var r relief
	users := func() int {
		r.mu.Lock()
		defer r.mu.Unlock()
		return r.users
	}
	await := func(n int) {
		t.Helper()
		for until := time.Now().Add(10 * time.Second); users() != n; time.Sleep(time.Millisecond) {
			if time.Now().After(until) {
				t.Fatalf("%d, not %d", users(), n)
			}
		}
	}
	gates, done := []chan struct{}{make(chan struct{}), make(chan struct{})}, make(chan struct{})
	for _, gate := range gates {
		go func() {
			r.during(joins, time.Millisecond, func() { <-gate })
			done <- struct{}{}
		}()
	}
	await(2)
	close(gates[0])
	<-done
	await(1)
	close(gates[1])
	<-done
	await(0)
	// What is over in time needs none.
	r.during(joins, time.Hour, func() { await(0) })
	r.during(nil, 0, func() { await(0) })
	if r.lost() != nil {
		t.Error(r.lost())
	}
}
