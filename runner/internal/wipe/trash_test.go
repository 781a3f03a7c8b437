package wipe

import (
	"fmt"
	"os"
	"runtime"
	"syscall"
	"testing"
	"time"
)

// A removal on the only processor of the runtime does not hold up a message that has arrived.
func TestARemovalLetsMessagesPass(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	trash, err := NewTrash(t.TempDir() + "/trash")
	if err != nil {
		t.Fatal(err)
	}
	tree := t.TempDir() + "/tree"
	if err := os.Mkdir(tree, 0o700); err != nil {
		t.Fatal(err)
	}
	for n := range 5000 {
		if err := os.WriteFile(fmt.Sprintf("%s/%d", tree, n), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	reader, writer, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer reader.Close()
	defer writer.Close()
	waits, arrived := make(chan struct{}), make(chan int64, 1)
	go func() {
		close(waits)
		_, _ = reader.Read(make([]byte, 1))
		arrived <- trash.steps.Load()
	}()
	<-waits
	raw, err := writer.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	time.Sleep(time.Millisecond) // the reader waits for the descriptor, or the message is there when it begins
	if err := raw.Write(func(fd uintptr) bool { _, err = syscall.Write(int(fd), []byte{0}); return true }); err != nil {
		t.Fatal(err)
	}
	w := Wiper{trash: trash}
	if !w.Wipe(tree) {
		t.Error(w.Problems)
	}
	if steps := <-arrived; steps > 4*yieldBatch {
		t.Errorf("%d entries were removed before the message was read", steps)
	}
}

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
