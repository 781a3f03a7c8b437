package tenants

import (
	"errors"
	"os"
	"os/exec"
	"syscall"
	"testing"

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
