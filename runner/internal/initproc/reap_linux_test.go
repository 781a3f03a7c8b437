package initproc

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"
)

// startOwned is cmd.Start for a program in which ReapOrphans runs.
func startOwned(cmd *exec.Cmd) error {
	_, err := Own(func() (int, error) {
		if err := cmd.Start(); err != nil {
			return 0, err
		}
		return cmd.Process.Pid, nil
	})
	return err
}

func waitOwned(cmd *exec.Cmd) error {
	defer Disown(cmd.Process.Pid)
	return cmd.Wait()
}

func TestReaperTakesOrphansAndLeavesOwnedStatuses(t *testing.T) {
	Init(Options{Threads: 4, Subreaper: true})
	ReapOrphans()
	for range 50 {
		cmd := exec.Command("sh", "-c", "(true &) ; exit 7")
		if err := startOwned(cmd); err != nil {
			t.Fatal(err)
		}
		err := waitOwned(cmd)
		if code := cmd.ProcessState.ExitCode(); code != 7 {
			t.Fatalf("exit code %d, %v", code, err)
		}
	}
	deadline := time.Now().Add(60 * time.Second)
	for zombies() > 0 {
		if time.Now().After(deadline) {
			t.Fatalf("%d zombies are left", zombies())
		}
		time.Sleep(time.Millisecond)
	}
}

func TestEndedNeedsNoThread(t *testing.T) {
	Init(Options{Threads: 8, Subreaper: true})
	ReapOrphans()
	before := threads(t)
	var all []*exec.Cmd
	for range 40 {
		cmd := exec.Command("sh", "-c", "read line; exit 5")
		in, err := cmd.StdinPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := startOwned(cmd); err != nil {
			t.Fatal(err)
		}
		defer in.Close()
		all = append(all, cmd)
		go func() { <-OnEnd(cmd.Process.Pid) }()
	}
	if now := threads(t); now > before+10 {
		t.Errorf("%d threads, %d before", now, before)
	}
	for _, cmd := range all {
		select {
		case <-OnEnd(cmd.Process.Pid):
			t.Fatal("told too early")
		default:
		}
		ended := OnEnd(cmd.Process.Pid)
		_ = cmd.Process.Signal(os.Interrupt)
		select {
		case <-ended:
		case <-time.After(60 * time.Second):
			t.Fatal("not told")
		}
		_ = waitOwned(cmd)
		if cmd.ProcessState == nil || cmd.ProcessState.Success() {
			t.Fatal(cmd.ProcessState)
		}
	}
}

func threads(t *testing.T) int {
	entries, err := os.ReadDir("/proc/self/task")
	if err != nil {
		t.Fatal(err)
	}
	return len(entries)
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
