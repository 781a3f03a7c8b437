package isolation

import (
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"

	"hermes-exec/runner/internal/cgroup"
	"hermes-exec/runner/internal/initproc"
	"hermes-exec/runner/internal/rights"
)

// SelfExe runs this program again, also when its file has been replaced.
const SelfExe = "/proc/self/exe"

// ProbeArg makes `runner agent ProbeArg` try, in the namespaces that it was
// started in, what a slot needs; see ProbeChild.
const ProbeArg = "--probe"

// Probe tries what this box allows.
func Probe() Facts {
	f := Facts{Reasons: map[string]string{}, Root: os.Geteuid() == 0, IDs: mappedIDs(), LandlockABI: LandlockABI()}
	f.Cgroup, f.Cgroups = cgroup.Probe()
	f.Caps, _ = rights.EffectiveCaps()
	f.Switch, f.Setgroups, f.Reasons[UID] = probeSwitch(f)
	if f.Switch {
		delete(f.Reasons, UID)
	}
	probeNamespaces(&f)
	switch {
	case f.Way != WayNone:
		f.Highest = Namespaces
		delete(f.Reasons, Namespaces)
	case f.Switch:
		f.Highest = UID
	default:
		f.Highest = None
	}
	return f
}

// mappedIDs is the longest run of uids that this process's user namespace has.
func mappedIDs() IDRange {
	data, err := os.ReadFile("/proc/self/uid_map")
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
func probeSwitch(f Facts) (can, setgroups bool, reason string) {
	if !f.Root {
		return false, false, "the runner is not root"
	}
	if f.IDs.Count < 65536 {
		return false, false, fmt.Sprintf("only %d uids exist in this user namespace", f.IDs.Count)
	}
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with this goroutine
		done <- trySwitch(f.IDs.First + f.IDs.Count/2)
	}()
	if err := <-done; err != nil {
		return false, false, err.Error()
	}
	return true, true, ""
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

// probeNamespaces finds the first way that works.
func probeNamespaces(f *Facts) {
	var reasons []string
	ways := []Way{WaySelf}
	if f.Root {
		ways = []Way{WayDirect, WayIdentity}
	}
	for _, way := range ways {
		if way == WayDirect || way == WayIdentity {
			if !f.Switch {
				reasons = append(reasons, string(way)+": "+f.Reasons[UID])
				continue
			}
		}
		began := time.Now()
		loopback, err := tryNamespaces(way)
		if err == nil {
			f.Way, f.Loopback = way, loopback
			f.UserNamespace = f.UserNamespace || way != WayDirect
			f.PriceMS = float64(time.Since(began).Microseconds()) / 1000
			return
		}
		reasons = append(reasons, string(way)+": "+err.Error())
	}
	path, price, err := tryBwrap(f.Root)
	if err == nil {
		f.Way, f.Loopback, f.BwrapPath, f.Bubblewrap, f.PriceMS = WayBwrap, true, path, true, price
		return
	}
	reasons = append(reasons, "bubblewrap: "+err.Error())
	f.Reasons[Namespaces] = strings.Join(reasons, "; ")
}

// tryNamespaces starts this program in namespaces and lets it mount.
func tryNamespaces(way Way) (loopback bool, err error) { return tryIn(way, ProbeArg) }

// tryIn starts `runner agent ARGS…` in namespaces and hears its verdict.
func tryIn(way Way, args ...string) (loopback bool, err error) {
	r, w, err := os.Pipe()
	if err != nil {
		return false, err
	}
	defer r.Close()
	var p *os.Process
	_, err = initproc.Own(func() (int, error) {
		if p, err = Start(way, false, append([]string{"runner", "agent"}, args...), [3]*os.File{}, w); err != nil {
			return 0, err
		}
		return p.Pid, nil
	})
	w.Close()
	if err != nil {
		return false, plain(err)
	}
	said, _ := io.ReadAll(io.LimitReader(r, 4096))
	state, err := wait(p)
	if err != nil {
		return false, err
	}
	switch {
	case state.Success() && string(said) == verdictOK:
		return true, nil
	case state.Success() && string(said) == verdictNoLoopback:
		return false, nil
	case len(said) == 0:
		return false, fmt.Errorf("the trial ended with %s", state)
	}
	return false, errors.New(string(said))
}

func wait(p *os.Process) (*os.ProcessState, error) {
	defer initproc.Disown(p.Pid)
	return p.Wait()
}

func plain(err error) error {
	var errno syscall.Errno
	if errors.As(err, &errno) {
		return fmt.Errorf("clone: %w", errno)
	}
	return err
}

// ProbeChild is what the trial process does; its verdict goes to fd 3. folder is
// that of OwnRootArg.
func ProbeChild(folder string) int {
	out := os.NewFile(3, "verdict")
	try := tryMounts
	if folder != "" {
		try = func() error { return tryOwnRoot(folder) }
	}
	if err := try(); err != nil {
		fmt.Fprint(out, err.Error())
		return 1
	}
	if loopback := loopbackUp(); loopback != nil {
		fmt.Fprint(out, verdictNoLoopback)
		return 0
	}
	fmt.Fprint(out, verdictOK)
	return 0
}

const (
	verdictOK         = "ok"
	verdictNoLoopback = "no loopback"
)

func tryMounts() error {
	if err := mount("none", "/", "", syscall.MS_REC|syscall.MS_PRIVATE, ""); err != nil {
		return err
	}
	if err := mount("proc", "/proc", "proc", msNosuidNodev|syscall.MS_NOEXEC, ""); err != nil {
		return fmt.Errorf("a new /proc is refused: %w", err)
	}
	if os.Getpid() != 1 {
		return errors.New("not init of a new pid namespace")
	}
	if err := newDeviceMounts("/dev", sharedMemory); err != nil {
		return err
	}
	if err := mount("tmpfs", "/dev", "tmpfs", msNosuidNodev, "mode=0755,size=64k"); err != nil {
		return err
	}
	if err := os.Chdir("/dev"); err != nil {
		return err
	}
	if err := syscall.PivotRoot(".", "."); err != nil {
		return fmt.Errorf("pivot_root: %w", err)
	}
	return nil
}
