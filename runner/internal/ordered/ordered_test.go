package ordered

import (
	"slices"
	"testing"
)

func TestRequestsAreCarriedOutInTheOrderOfTheirNumbers(t *testing.T) {
	var r Requests
	done := r.Begin("a", 2)
	if r.all["a"].mu.TryLock() {
		t.Fatal("nothing keeps a later request from taking effect first")
	}
	r.Begin("b", 1)() // another thing waits for nothing
	var order []int
	ended := make(chan bool)
	go func() {
		later := r.Begin("a", 3)
		order = append(order, 3)
		later()
		close(ended)
	}()
	order = append(order, 2)
	done()
	<-ended
	if !slices.Equal(order, []int{2, 3}) {
		t.Error(order)
	}
	if r.Begin("a", 2) != nil {
		t.Error("a request that was given up has begun")
	}
}
