package link

import (
	"testing"
	"time"

	"hermes-exec/runner/internal/cgroup"
)

func TestReliefComesOnceForAllAndGoesWithTheLast(t *testing.T) {
	r := CPURelief{Joins: []cgroup.Join{{Controller: "cpu", Dir: t.TempDir()}}}
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
			end := r.Begin(time.Millisecond)
			<-gate
			end()
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
	// Work that ends in time needs no relief.
	end := r.Begin(time.Hour)
	await(0)
	end()
	(&CPURelief{}).Begin(0)()
	if err := r.Err(); err != nil {
		t.Error(err)
	}
}
