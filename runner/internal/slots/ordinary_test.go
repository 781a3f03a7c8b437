package slots

import (
	"os"
	"os/exec"
	"syscall"
	"testing"
)

// TestAsAnOrdinaryUser runs the other tests again as an unprivileged user.
func TestAsAnOrdinaryUser(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("this is an ordinary user")
	}
	dir, err := os.MkdirTemp("/tmp", "slots-nobody-")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	program, err := os.ReadFile("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(dir+"/slots.test", program, 0o755); err != nil {
		t.Fatal(err)
	}
	args := []string{"-test.count=1", "-test.skip=TestAsAnOrdinaryUser"}
	if testing.Verbose() {
		args = append(args, "-test.v")
	}
	cmd := exec.Command(dir+"/slots.test", args...)
	cmd.Dir, cmd.Env = "/", []string{"PATH=" + os.Getenv("PATH"), "TMPDIR=/tmp"}
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	out, err := cmd.CombinedOutput()
	if testing.Verbose() {
		t.Logf("%s", out)
	}
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
}
