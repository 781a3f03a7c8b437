package agent

import (
	"errors"
	"os"
	"os/exec"
	"syscall"
	"testing"

	"hermes-exec/runner/internal/proc"
)

func TestStatusBeforeEntryIsNotLost(t *testing.T) {
	var tab table
	tab.init()
	first := &command{token: 1, pid: 77}
	tab.expect(first)
	if c := tab.reaped(77, status{wait: 7 << 8}); c != nil {
		t.Fatal("nobody was entered")
	}
	end := tab.entered(first)
	if end == nil || end.wait.ExitStatus() != 7 {
		t.Errorf("%+v", end)
	}
	second := &command{token: 2, pid: 77}
	tab.expect(second)
	if end := tab.entered(second); end != nil {
		t.Error("an old status was given to a new process")
	}
	if c := tab.reaped(77, status{}); c == nil || c.token != 2 {
		t.Errorf("%+v", c)
	}
	tab.reaped(78, status{})
	if len(tab.early) != 0 {
		t.Error("statuses of orphans are kept")
	}
}

func TestStatusOfAnOrphanIsNotThatOfTheNextOwnerOfItsNumber(t *testing.T) {
	var tab table
	tab.init()
	slow, next := &command{token: 1, pid: 5}, &command{token: 2, pid: 77}
	tab.expect(slow) // and its fork does not come back for long
	tab.reaped(77, status{wait: 9})
	tab.expect(next)
	if end := tab.entered(next); end != nil {
		t.Errorf("a command has the end of an orphan: %+v", end)
	}
	if c := tab.reaped(77, status{}); c != next {
		t.Errorf("%+v", c)
	}
	tab.reaped(78, status{wait: 9})
	tab.expect(slow) // once more
	slow.pid = 78
	if end := tab.entered(slow); end != nil {
		t.Errorf("an attempt has the end of an orphan before it: %+v", end)
	}
}

func TestOrphansAreForgottenWhileSomethingIsAlwaysForked(t *testing.T) {
	var tab table
	tab.init()
	before := &command{token: 1, pid: 1}
	tab.expect(before)
	for i := 2; i < 1000; i++ {
		c := &command{token: uint64(i), pid: i}
		tab.expect(c)
		tab.reaped(100_000+i, status{})
		tab.entered(before)
		before = c
	}
	if len(tab.early) > 2 {
		t.Errorf("%d statuses are kept", len(tab.early))
	}
}

func TestTableForgetsOldCommands(t *testing.T) {
	var tab table
	tab.init()
	for i := 1; i <= 5*keptEnded; i++ {
		c := &command{token: uint64(i), pid: i}
		tab.expect(c)
		tab.entered(c)
		if i != 5 {
			tab.reaped(i, status{})
		}
	}
	if len(tab.byToken) > 2*keptEnded || len(tab.old) > 2*keptEnded {
		t.Errorf("%d commands are kept", len(tab.byToken))
	}
	if _, ok := tab.get(5); !ok {
		t.Error("a command that runs was forgotten")
	}
	if err := tab.whileAlive(6, func(int) error { return nil }); err != syscall.ESRCH {
		t.Error(err)
	}
}

func TestSignalSparesTheNextOwnerOfANumber(t *testing.T) {
	p, ok := proc.ParseStat(proc.Read("/proc/self/stat", make([]byte, 4096)))
	if !ok || p.PID != os.Getpid() {
		t.Fatal(p, ok)
	}
	p.Start++
	signalProc(p, syscall.SIGKILL) // would end this test
}

func TestACommandThatIsBeingStartedIsNotTakenForAnothers(t *testing.T) {
	k := &killer{tenancy: &tenancy{}}
	k.table.init()
	first := command{token: 1, start: proc.BootTicks()}
	next := &command{token: 2, start: first.start}
	k.table.expect(next)
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
	if found, _, err := k.treeOf(first, nil); len(found) != 0 || !errors.Is(err, errForking) {
		t.Errorf("found while it is started: %v, %v", found, err)
	}
	k.table.abandoned(next)
	if found, _, err := k.treeOf(first, nil); len(found) != 1 || err != nil {
		t.Errorf("found as nobody's: %v, %v", found, err)
	}
}
