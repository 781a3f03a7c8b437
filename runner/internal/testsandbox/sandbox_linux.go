package testsandbox

import (
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"testing"

	"hermes-exec/runner/internal/bounded"
	"hermes-exec/runner/internal/initproc"
)

const variable = "HERMES_EXEC_TEST_SANDBOX"

// Enter makes this process the first process of a pid namespace that stands for a sandbox, if Run has
// started it. TestMain must call it.
func Enter() {
	if os.Getenv(variable) == "" {
		return
	}
	if os.Getpid() != 1 || os.Getppid() != 0 {
		fmt.Println("not in a pid namespace of its own")
		os.Exit(1)
	}
	os.Unsetenv(variable)
	mustMount := func(err error) {
		if err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
	}
	mustMount(syscall.Mount("none", "/", "", syscall.MS_REC|syscall.MS_PRIVATE, ""))
	mustMount(syscall.Mount("proc", "/proc", "proc", 0, ""))
	// Mounts of engines and of other tests come and go with their directories, here too.
	for line := range strings.Lines(MountTable()) {
		f := strings.Fields(line)
		if len(f) > 4 && slices.ContainsFunc([]string{"/var/lib", "/run", "/tmp", "/var/tmp"},
			func(dir string) bool { return f[4] == dir || strings.HasPrefix(f[4], dir+"/") }) {
			_ = syscall.Unmount(f[4], syscall.MNT_DETACH)
		}
	}
	for _, dir := range []string{"/tmp", "/dev/shm", "/var/tmp"} {
		mustMount(syscall.Mount("tmpfs", dir, "tmpfs", 0, ""))
	}
	initproc.ReapOrphans()
}

// MountTable returns the mounts of this process.
func MountTable() string {
	table, _ := bounded.ReadWhole("/proc/self/mountinfo", bounded.TableSize)
	return string(table)
}

// Run runs the tests whose names contain InTheSandbox in namespaces of their own.
func Run(t *testing.T) {
	t.Helper()
	args := []string{"-test.run=InTheSandbox", "-test.count=1"}
	if testing.Verbose() {
		args = append(args, "-test.v")
	}
	cmd := exec.Command("/proc/self/exe", args...)
	cmd.Env = append(os.Environ(), variable+"=1")
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL,
		Cloneflags: syscall.CLONE_NEWPID | syscall.CLONE_NEWNS | syscall.CLONE_NEWIPC}
	out, err := cmd.CombinedOutput()
	if testing.Verbose() {
		t.Logf("%s", out)
	}
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
}

// Skip skips a test that does not run in such a sandbox.
func Skip(t *testing.T) {
	t.Helper()
	if os.Getpid() != 1 {
		t.Skip("runs inside of the test that calls testsandbox.Run")
	}
}
