package bell

import (
	"testing"
	"time"
)

func TestABellThatNobodyWaitsForRingsOn(t *testing.T) {
	var b Bell
	b.Init()
	done := make(chan struct{})
	go func() {
		defer close(done)
		for range 200_000 { // a pipe holds fewer bytes
			b.Arm()
			b.Ring()
		}
		b.Wait()
	}()
	select {
	case <-done:
	case <-time.After(30 * time.Second):
		t.Fatal("a ring waits for somebody to hear it")
	}
}
