package pipe

import (
	"net"
	"os"
	"path/filepath"
	"runtime"
	"testing"
	"time"
)

// TestOthersGoFirst counts how often a connection is served on the one
// processor that a flood keeps busy.
func TestOthersGoFirst(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	dir, err := os.MkdirTemp("", "turn")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	listener, err := net.Listen("unix", filepath.Join(dir, "s"))
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	rounds := make(chan int, 1)
	go func() {
		ours, err := listener.Accept()
		if err != nil {
			return
		}
		n, one := 0, make([]byte, 1)
		for {
			if _, err := ours.Read(one); err != nil {
				rounds <- n
				return
			}
			_, _ = ours.Write(one)
			n++
		}
	}()
	theirs, err := net.Dial("unix", filepath.Join(dir, "s"))
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		one := make([]byte, 1)
		for {
			if _, err := theirs.Write(one); err != nil {
				return
			}
			if _, err := theirs.Read(one); err != nil {
				return
			}
		}
	}()
	var flood Yielder
	const turns = 2000
	for range turns {
		for begun := time.Now(); time.Since(begun) < 20*time.Microsecond; {
		}
		flood.Yield()
	}
	_ = theirs.Close()
	if n := <-rounds; n < turns/4 {
		t.Errorf("%d rounds in %d turns", n, turns)
	}
	flood.Close()
	flood.Close()
}
