package children

import (
	"syscall"
	"testing"
)

func TestStatusBeforeEntryIsNotLost(t *testing.T) {
	tab := NewTable(nil)
	first := &Command{Token: 1, PID: 77}
	tab.Expect(first)
	if c := tab.recordEnd(77, status{wait: 7 << 8}); c != nil {
		t.Fatal("nobody was entered")
	}
	end := tab.record(first)
	if end == nil || end.wait.ExitStatus() != 7 {
		t.Errorf("%+v", end)
	}
	second := &Command{Token: 2, PID: 77}
	tab.Expect(second)
	if end := tab.record(second); end != nil {
		t.Error("an old status was given to a new process")
	}
	if c := tab.recordEnd(77, status{}); c == nil || c.Token != 2 {
		t.Errorf("%+v", c)
	}
	tab.recordEnd(78, status{})
	if len(tab.earlyExits) != 0 {
		t.Error("statuses of orphans are kept")
	}
}

func TestStatusOfAnOrphanIsNotThatOfTheNextOwnerOfItsNumber(t *testing.T) {
	tab := NewTable(nil)
	slow, next := &Command{Token: 1, PID: 5}, &Command{Token: 2, PID: 77}
	tab.Expect(slow) // and its fork does not come back for long
	tab.recordEnd(77, status{wait: 9})
	tab.Expect(next)
	if end := tab.record(next); end != nil {
		t.Errorf("a command has the end of an orphan: %+v", end)
	}
	if c := tab.recordEnd(77, status{}); c != next {
		t.Errorf("%+v", c)
	}
	tab.recordEnd(78, status{wait: 9})
	tab.Expect(slow) // once more
	slow.PID = 78
	if end := tab.record(slow); end != nil {
		t.Errorf("an attempt has the end of an orphan before it: %+v", end)
	}
}

func TestOrphansAreForgottenWhileSomethingIsAlwaysForked(t *testing.T) {
	tab := NewTable(nil)
	before := &Command{Token: 1, PID: 1}
	tab.Expect(before)
	for i := 2; i < 1000; i++ {
		c := &Command{Token: uint64(i), PID: i}
		tab.Expect(c)
		tab.recordEnd(100_000+i, status{})
		tab.record(before)
		before = c
	}
	if len(tab.earlyExits) > 2 {
		t.Errorf("%d statuses are kept", len(tab.earlyExits))
	}
}

func TestTableForgetsOldCommands(t *testing.T) {
	tab := NewTable(nil)
	for i := 1; i <= 5*maxEndedCommands; i++ {
		c := &Command{Token: uint64(i), PID: i}
		tab.Expect(c)
		tab.record(c)
		if i != 5 {
			tab.recordEnd(i, status{})
		}
	}
	if len(tab.byToken) > 2*maxEndedCommands || len(tab.tokens) > 2*maxEndedCommands {
		t.Errorf("%d commands are kept", len(tab.byToken))
	}
	if _, ok := tab.Get(5); !ok {
		t.Error("a command that runs was forgotten")
	}
	if err := tab.WhileAlive(6, func(int) error { return nil }); err != syscall.ESRCH {
		t.Error(err)
	}
}
