package initproc

import (
	"bufio"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
)

const asParent = "HERMES_EXEC_TEST_CHILDLESS"

// An orphan that has left its parent, session and group is a child of the
// subreaper until it is reaped. In a process of its own: this one has others.
func TestOrphansCountAsChildren(t *testing.T) {
	if os.Getenv(asParent) == "" {
		cmd := exec.Command("/proc/self/exe", "-test.run=^TestOrphansCountAsChildren$", "-test.count=1")
		cmd.Env = append(os.Environ(), asParent+"=1")
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		return
	}
	Init(Options{Subreaper: true})
	if !IsSubreaper() || !HasNoChildren() {
		t.Fatal("a subreaper without children is not seen as one")
	}
	cmd := exec.Command("sh", "-c", "setsid sh -c 'setsid sleep 1000 & echo $!'")
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	orphan, err := strconv.Atoi(strings.TrimSpace(line))
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	if HasNoChildren() {
		t.Error("an orphan was overlooked")
	}
	if err := syscall.Kill(orphan, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	for {
		if _, err := syscall.Wait4(-1, nil, 0, nil); err == syscall.ECHILD {
			break
		}
	}
	if !HasNoChildren() {
		t.Error("reaped children still count")
	}
}
