package isolation

import (
	"errors"
	"fmt"
	"os"
	"time"

	"hermes-exec/runner/internal/initproc"
	"hermes-exec/runner/internal/ipc"
)

var bwrapPaths = []string{"/usr/bin/bwrap", "/bin/bwrap", "/usr/local/bin/bwrap"}

// tryBwrap runs this program under bubblewrap. Ordinary users need it on hosts where only
// bubblewrap may make namespaces, as a setuid program or by a security profile.
func tryBwrap(root bool) (path string, priceMS float64, err error) {
	if root {
		return "", 0, errors.New("not tried as root, where it can do no more than the runner")
	}
	for _, p := range bwrapPaths {
		if st, err := os.Stat(p); err == nil && st.Mode().IsRegular() {
			path = p
			break
		}
	}
	if path == "" {
		return "", 0, errors.New("not installed")
	}
	began := time.Now()
	exe, err := os.Readlink(SelfExe)
	if err != nil {
		return "", 0, err
	}
	args := []string{"bwrap", "--unshare-user", "--unshare-pid", "--unshare-ipc", "--unshare-uts", "--unshare-net",
		"--as-pid-1", "--ro-bind", "/", "/",
		"--proc", "/proc", "--dev", "/dev", "--", exe, "agent", NoopArg}
	var p *os.Process
	_, err = initproc.Own(func() (int, error) {
		if p, err = os.StartProcess(path, args,
			&os.ProcAttr{Files: []*os.File{nil, nil, nil}, Env: []string{}}); err != nil {
			return 0, err
		}
		return p.Pid, nil
	})
	if err != nil {
		return "", 0, cloneError(err)
	}
	state, err := wait(p)
	if err != nil {
		return "", 0, err
	}
	if wasKilled(state) {
		return "", 0, fmt.Errorf("the trial ended with %s: %w", state, ipc.ErrShortage)
	}
	if !state.Success() {
		return "", 0, errors.New("the trial ended with " + state.String())
	}
	return path, float64(time.Since(began).Microseconds()) / 1000, nil
}

// NoopArg makes `runner agent NoopArg` do nothing, successfully.
const NoopArg = "--noop"
