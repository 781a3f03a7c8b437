package wipe

import (
	"os"
	"testing"
	"time"
)

func TestAResetWaitsForATreeThatDoesNotEndOnce(t *testing.T) {
	trash, err := NewTrash(t.TempDir() + "/trash")
	if err != nil {
		t.Fatal(err)
	}
	trash.Timeout = 300 * time.Millisecond
	for range MaxRemovals { // nothing is removed meanwhile
		trash.Turns <- struct{}{}
	}
	tree := t.TempDir() + "/tree"
	if err := os.MkdirAll(tree+"/below", 0o700); err != nil {
		t.Fatal(err)
	}
	discarded, err := trash.Discard(tree)
	if err != nil {
		t.Fatal(err)
	}
	waste := []*DiscardedTree{discarded}
	for round, wait := range []bool{true, false, false} {
		began := time.Now()
		going, problems := trash.SettleOnce(waste)
		took := time.Since(began)
		if len(going) != 1 || took >= trash.Timeout != wait || len(problems) > 0 != wait {
			t.Errorf("%d: %v, %q, %d", round, took, problems, len(going))
		}
	}
	for range MaxRemovals {
		<-trash.Turns
	}
	if going, problems := trash.Settle(waste); len(going) > 0 || len(problems) > 0 {
		t.Errorf("%d, %q", len(going), problems)
	}
}
