package isolation

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"

	"hermes-exec/runner/internal/bounded"
	"hermes-exec/runner/internal/cgroup"
	"hermes-exec/runner/internal/initproc"
	"hermes-exec/runner/internal/ipc"
	"hermes-exec/runner/internal/rights"
	"hermes-exec/runner/internal/rootfs"
)

// SelfExe runs this program again, even after its file was replaced.
const SelfExe = "/proc/self/exe"

// ProbeArg makes `runner agent ProbeArg` try, in its namespaces, the steps that a slot needs; see
// ProbeChild.
const ProbeArg = "--probe"

// Probe tries the mechanisms of isolation in this sandbox. It returns an error if a trial lacked
// memory, processes or disk space: such a trial proves nothing.
func Probe() (Facts, error) {
	f := Facts{Reasons: map[string]string{}, Root: os.Geteuid() == 0, IDs: largestIDRange(), LandlockABI: LandlockABI()}
	f.Cgroup, f.Cgroups = cgroup.Probe()
	f.Caps, _ = rights.EffectiveCaps()
	switched := probeSwitch(f)
	if ipc.IsShortage(switched) {
		return f, inconclusiveError(switched)
	}
	if f.Switch, f.Setgroups = switched == nil, switched == nil; !f.Switch {
		f.Reasons[UID] = switched.Error()
	}
	if err := probeNamespaces(&f); err != nil {
		return f, err
	}
	if err := probeLandlock(f.LandlockABI); err != nil {
		f.Reasons[Landlock] = err.Error()
	} else {
		f.Confine = true
	}
	switch {
	case f.Method != MethodNone:
		f.Highest = Namespaces
		delete(f.Reasons, Namespaces)
	case f.Switch:
		f.Highest = UID
	case f.Confine:
		f.Highest = Landlock
	default:
		f.Highest = None
	}
	return f, nil
}

// largestIDRange returns the longest run of uids of this process's user namespace.
func largestIDRange() IDRange {
	data, err := bounded.ReadWhole("/proc/self/uid_map", bounded.SettingSize)
	best := IDRange{}
	if err != nil {
		return IDRange{First: 0, Count: 65536}
	}
	for _, line := range strings.Split(string(data), "\n") {
		f := strings.Fields(line)
		if len(f) != 3 {
			continue
		}
		first, err1 := strconv.ParseUint(f[0], 10, 32)
		count, err2 := strconv.ParseUint(f[2], 10, 33)
		if err1 == nil && err2 == nil && uint32(min(count, 1<<32-1)) > best.Count {
			best = IDRange{First: uint32(first), Count: uint32(min(count, 1<<32-1))}
		}
	}
	return best
}

// probeSwitch becomes another user for a moment, on a thread of its own.
func probeSwitch(f Facts) error {
	if !f.Root {
		return errors.New("the runner is not root")
	}
	if f.IDs.Count < 65536 {
		return fmt.Errorf("only %d uids exist in this user namespace", f.IDs.Count)
	}
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with this goroutine
		done <- trySwitch(f.IDs.middle())
	}()
	return <-done
}

func trySwitch(uid uint32) error {
	caps, err := rights.EffectiveCaps()
	if err != nil {
		return err
	}
	for _, c := range []struct {
		bit  int
		name string
	}{{rights.CapSetuid, "CAP_SETUID"}, {rights.CapSetgid, "CAP_SETGID"}, {rights.CapKill, "CAP_KILL"},
		{rights.CapChown, "CAP_CHOWN"}} {
		if caps&(1<<c.bit) == 0 {
			return errors.New("root without " + c.name)
		}
	}
	if err := rights.ThreadFS(uid, uid, []uint32{uid}); err != nil {
		return err
	}
	if err := rights.ThreadFS(0, 0, nil); err != nil {
		return err
	}
	return rights.AsUser(uid, uid, func() error { return nil })
}

// probeNamespaces finds the first method that works.
func probeNamespaces(f *Facts) error {
	var reasons []string
	var lack error
	failed := func(method Method, err error) {
		reasons = append(reasons, string(method)+": "+err.Error())
		if ipc.IsShortage(err) {
			lack = err
		}
	}
	methods := []Method{MethodSelf}
	if f.Root && !f.OneID() {
		methods = []Method{MethodDirect, MethodIdentity}
	}
	for _, method := range methods {
		if method == MethodDirect || method == MethodIdentity {
			if !f.Switch {
				reasons = append(reasons, string(method)+": "+f.Reasons[UID])
				continue
			}
		}
		began := time.Now()
		loopback, err := tryIn(method, f.IDs.middle(), ProbeArg)
		if err == nil {
			f.Method, f.Loopback = method, loopback
			f.UserNamespace = f.UserNamespace || method != MethodDirect
			f.PriceMS = float64(time.Since(began).Microseconds()) / 1000
			return nil
		}
		failed(method, err)
	}
	path, price, err := tryBwrap(f.Root)
	if err == nil {
		f.Method, f.Loopback, f.BwrapPath, f.Bubblewrap, f.PriceMS = MethodBwrap, true, path, true, price
		return nil
	}
	failed("bubblewrap", err)
	if lack != nil {
		return inconclusiveError(lack)
	}
	f.Reasons[Namespaces] = strings.Join(append(reasons, namespaceSettings()...), "; ")
	return nil
}

// namespaceSettings returns the settings of this kernel that keep ordinary users from namespaces.
func namespaceSettings() (set []string) {
	for _, s := range []struct{ name, forbids string }{{"user.max_user_namespaces", "0"},
		{"kernel.unprivileged_userns_clone", "0"}, {"kernel.apparmor_restrict_unprivileged_userns", "1"}} {
		path := "/proc/sys/" + strings.ReplaceAll(s.name, ".", "/")
		value, err := bounded.ReadWhole(path, bounded.SettingSize)
		if err == nil && strings.TrimSpace(string(value)) == s.forbids {
			set = append(set, "the kernel setting "+s.name+" is "+s.forbids)
		}
	}
	return set
}

func inconclusiveError(lack error) error {
	return fmt.Errorf("isolation: the trials were inconclusive: %w", lack)
}

// tryIn starts `runner agent ARGS…` in namespaces and reads its verdict. The namespaces belong to
// owner if they may belong to another user.
func tryIn(method Method, owner uint32, args ...string) (loopback bool, err error) {
	r, w, err := os.Pipe()
	if err != nil {
		return false, err
	}
	defer r.Close()
	var p *os.Process
	_, err = initproc.Own(func() (int, error) {
		started := make(chan struct{})
		go func() { // not on this thread, which may be the first
			defer close(started)
			p, err = Start(method, false, owner, append([]string{"runner", "agent"}, args...), [3]*os.File{}, w)
		}()
		if <-started; err != nil {
			return 0, err
		}
		return p.Pid, nil
	})
	w.Close()
	if err != nil {
		return false, cloneError(err)
	}
	verdict, _, _ := bounded.Read(r, 4096)
	state, err := wait(p)
	if err != nil {
		return false, err
	}
	switch {
	case state.Success() && string(verdict) == verdictOK:
		return true, nil
	case state.Success() && string(verdict) == verdictNoLoopback:
		return false, nil
	case state.ExitCode() == shortageCode:
		return false, fmt.Errorf("%s: %w", verdict, ipc.ErrShortage)
	case len(verdict) == 0 && (wasKilled(state) || state.ExitCode() == crashCode):
		return false, fmt.Errorf("the trial ended with %s: %w", state, ipc.ErrShortage)
	case len(verdict) == 0:
		return false, fmt.Errorf("the trial ended with %s", state)
	}
	return false, errors.New(string(verdict))
}

// wasKilled reports whether a process was ended by SIGKILL, as for lack of memory.
func wasKilled(state *os.ProcessState) bool {
	ws, ok := state.Sys().(syscall.WaitStatus)
	return ok && ws.Signaled() && ws.Signal() == syscall.SIGKILL
}

func wait(p *os.Process) (*os.ProcessState, error) {
	defer initproc.Disown(p.Pid)
	return p.Wait()
}

// cloneError returns the errno of a clone as an error. ENOSPC is a limit on namespaces, such as 0,
// and no shortage.
func cloneError(err error) error {
	var errno syscall.Errno
	if errors.As(err, &errno) {
		if errno == syscall.ENOSPC {
			return errors.New("clone: " + errno.Error())
		}
		return fmt.Errorf("clone: %w", errno)
	}
	return err
}

// ProbeChild is the main function of the trial process. It writes its verdict to fd 3. directory is
// the argument of OwnRootArg.
func ProbeChild(directory string) int {
	out := os.NewFile(3, "verdict")
	try := rootfs.TryMounts
	if directory != "" {
		try = func() error { return rootfs.TryOwnRoot(directory) }
	}
	if err := try(); err != nil {
		fmt.Fprint(out, err.Error())
		if ipc.IsShortage(err) {
			return shortageCode
		}
		return 1
	}
	if loopback := rootfs.StartLoopback(); loopback != nil {
		fmt.Fprint(out, verdictNoLoopback)
		return 0
	}
	fmt.Fprint(out, verdictOK)
	return 0
}

const (
	verdictOK         = "ok"
	verdictNoLoopback = "no loopback"
	shortageCode      = 3 // exit code of a trial that hit a shortage
	crashCode         = 2 // exit code of a program that the Go runtime aborts, as for lack of memory or threads
)

// middle returns an id for trials.
func (r IDRange) middle() uint32 { return r.First + r.Count/2 }
