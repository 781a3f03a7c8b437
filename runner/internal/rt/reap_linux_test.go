package rt

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"
)

func TestReaperTakesOrphansAndLeavesOwnedStatuses(t *testing.T) {
	Init(Options{Threads: 4, Subreaper: true})
	ReapOrphans()
	for range 50 {
		cmd := exec.Command("sh", "-c", "(true &) ; exit 7")
		if err := Start(cmd); err != nil {
			t.Fatal(err)
		}
		err := Wait(cmd)
		if code := cmd.ProcessState.ExitCode(); code != 7 {
			t.Fatalf("exit code %d, %v", code, err)
		}
	}
	deadline := time.Now().Add(5 * time.Second)
	for zombies() > 0 {
		if time.Now().After(deadline) {
			t.Fatalf("%d zombies are left", zombies())
		}
		time.Sleep(time.Millisecond)
	}
}

func zombies() int {
	entries, _ := os.ReadDir("/proc")
	n := 0
	for _, e := range entries {
		data, err := os.ReadFile("/proc/" + e.Name() + "/stat")
		if err != nil {
			continue
		}
		rest := string(data[strings.LastIndexByte(string(data), ')')+1:])
		var state string
		var parent int
		if _, err := fmt.Sscan(rest, &state, &parent); err == nil && state == "Z" && parent == os.Getpid() {
			n++
		}
	}
	return n
}

func TestInitMakesThreads(t *testing.T) {
	Init(Options{Threads: 16})
	entries, err := os.ReadDir("/proc/self/task")
	if err != nil {
		t.Fatal(err)
	}
	if len(entries) < 16 {
		t.Fatalf("%d threads", len(entries))
	}
}
