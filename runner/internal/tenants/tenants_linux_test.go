package tenants

import (
	"errors"
	"os"
	"os/exec"
	"strconv"
	"syscall"
	"testing"
	"time"

	"hermes-exec/runner/internal/accounts"
	"hermes-exec/runner/internal/children"
	"hermes-exec/runner/internal/isolation"
	"hermes-exec/runner/internal/proc"
)

func TestSignalSparesTheNextOwnerOfANumber(t *testing.T) {
	p, ok := proc.ParseStat(proc.Read("/proc/self/stat", make([]byte, 4096)))
	if !ok || p.PID != os.Getpid() {
		t.Fatal(p, ok)
	}
	p.Start++
	signalProc(p, syscall.SIGKILL) // would end this test
}

func TestACommandThatIsBeingStartedIsNotTakenForAnothers(t *testing.T) {
	table := children.NewTable(nil)
	k := New(isolation.Setup{}, accounts.User{}, table, false)
	first := children.Command{Token: 1, Start: proc.BootTicks()}
	next := &children.Command{Token: 2, Start: first.Start}
	table.Expect(next)
	child := exec.Command("/bin/cat")
	child.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	stdin, err := child.StdinPipe() // it ends when that is closed
	if err == nil {
		err = child.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	defer child.Wait() //nolint:errcheck // how it ends does not matter
	defer stdin.Close()
	if found, _, err := k.treeOf(first, 0, nil); len(found) != 0 || !errors.Is(err, errForking) {
		t.Errorf("found while it is started: %v, %v", found, err)
	}
	table.Abandon(next)
	if found, _, err := k.treeOf(first, 0, nil); len(found) != 1 || err != nil {
		t.Errorf("found as nobody's: %v, %v", found, err)
	}
}

// The first thread of a process may have ended before the others.
func TestPauseStopsAProcessWithoutItsFirstThread(t *testing.T) {
	const code = `import ctypes, itertools, sys, threading
def count():
    for n in itertools.count():
        with open(sys.argv[1], "w") as f:
            f.write(str(n))
threading.Thread(target=count).start()
libc = ctypes.CDLL(None)
libc.pthread_exit(None)`
	counter := t.TempDir() + "/counter"
	child := exec.Command("/usr/bin/python3", "-c", code, counter)
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	defer child.Wait()         //nolint:errcheck // it is killed
	defer child.Process.Kill() //nolint:errcheck // it has not ended before
	state := func() proc.Process {
		p, _ := proc.ParseStat(proc.Read("/proc/"+strconv.Itoa(child.Process.Pid)+"/stat", make([]byte, 4096)))
		return p
	}
	waitUntil := func(what string, ready func() bool) {
		t.Helper()
		for until := time.Now().Add(20 * time.Second); !ready(); time.Sleep(time.Millisecond) {
			if time.Now().After(until) {
				t.Fatal(what)
			}
		}
	}
	changed := func() string {
		st, err := os.Stat(counter)
		if err != nil {
			return ""
		}
		return st.ModTime().String()
	}
	waitUntil("the first thread does not end", func() bool { return state().State == 'Z' && changed() != "" })
	k := New(isolation.Setup{}, accounts.User{}, children.NewTable(nil), false)
	if err := k.StartThreads(func() error { return nil }); err != nil {
		t.Fatal(err)
	}
	var pause Pause
	if err := pause.Begin(k); err != nil {
		t.Fatal(err)
	}
	before := changed()
	time.Sleep(100 * time.Millisecond)
	if changed() != before {
		t.Error("a thread runs during a pause")
	}
	pause.End(k)
	waitUntil("the thread does not continue", func() bool { return changed() != before })
}
