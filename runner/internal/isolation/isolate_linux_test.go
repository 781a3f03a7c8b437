package isolation

import (
	"os"
	"strings"
	"syscall"
	"testing"

	"hermes-exec/runner/internal/ipc"
)

// Without a free descriptor nothing can be tried, which proves nothing about the sandbox.
func TestTrialWithoutMeansProvesNothing(t *testing.T) {
	var before syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &before); err != nil {
		t.Fatal(err)
	}
	none := syscall.Rlimit{Cur: 0, Max: before.Max}
	if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &none); err != nil {
		t.Fatal(err)
	}
	facts, err := Probe()
	_, trial := tryIn(MethodSelf, 0, ProbeArg)
	if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &before); err != nil {
		t.Fatal(err)
	}
	if !ipc.IsShortage(err) {
		t.Errorf("%v, %+v", err, facts)
	}
	if !ipc.IsShortage(trial) {
		t.Error(trial)
	}
}

func TestHintNamesAThirdOverlay(t *testing.T) {
	err := &os.PathError{Op: "mount overlay", Path: "/", Err: syscall.EINVAL}
	if hint := namespaceHint(err); !strings.Contains(hint, "third overlay") {
		t.Errorf("%v: %q", err, hint)
	}
}
