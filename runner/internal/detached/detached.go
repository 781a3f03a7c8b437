package detached

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"hermes-exec/runner/internal/bounded"
	"hermes-exec/runner/internal/diskspace"
	"hermes-exec/runner/internal/private"
	"hermes-exec/runner/internal/proc"
	"hermes-exec/runner/internal/wipe"
)

const (
	prefix       = "hermes-exec-" // of the names of directories
	ownerFile    = "owner.json"
	runnerFile   = "runner.json"
	logFile      = "runner.log"
	leftFile     = "left.json"
	logTailSize  = 8 << 10
	startTimeout = 10 * time.Second
	endTimeout   = 5 * time.Second
	killTimeout  = 2 * time.Second
	pollInterval = 5 * time.Millisecond
)

// Sandbox is the state of a runner.
type Sandbox struct {
	Base      string          `json:"base"`
	State     string          `json:"state"` // alive, stopped or ended
	PID       int             `json:"pid,omitempty"`
	Owner     json.RawMessage `json:"owner,omitempty"`
	CreatedAt float64         `json:"created_at,omitempty"` // seconds since the epoch
	Log       string          `json:"log,omitempty"`        // the end of the log
	Left      []string        `json:"left,omitempty"`       // files that could not be removed
}

type process struct {
	PID   int    `json:"pid"`
	Start uint64 `json:"start"` // in ticks since boot
}

// Start runs `runner serve` for base, with more arguments, in a session of its own, and returns
// when it listens. It makes the directory of the runner. The runner removes it at an orderly end.
func Start(base string, owner json.RawMessage, args ...string) (Sandbox, error) {
	dir := filepath.Dir(base)
	if !json.Valid(owner) || !strings.HasPrefix(filepath.Base(dir), prefix) {
		return Sandbox{}, fmt.Errorf("start: %s is not %s…/NAME, or the owner is no JSON", base, prefix)
	}
	mode := fs.FileMode(0o700)
	if os.Geteuid() == 0 {
		mode = 0o711 // slots with uids of their own pass through it
	}
	above := filepath.Dir(dir)
	if err := private.Check(above); err != nil {
		return Sandbox{}, err
	}
	if left, ok := diskspace.At(above, os.Geteuid() == 0); ok && left.NearlyFull() {
		return Sandbox{}, fmt.Errorf("%s has no space for another sandbox: %d MiB are left", above, left.Bytes>>20)
	}
	if err := os.Mkdir(dir, mode); err != nil {
		return Sandbox{}, err
	}
	sandbox, err := start(dir, base, owner, args)
	if err != nil {
		sandbox = Read(base)
		if sandbox.Log == "" { // perhaps the disk has no room for a log
			err = errors.Join(err, os.WriteFile(filepath.Join(dir, ownerFile), make([]byte, logTailSize), 0o600))
		}
		_, _ = End(base)
		if log := strings.TrimSpace(sandbox.Log); log != "" {
			err = fmt.Errorf("%w: %s", err, log)
		}
		return Sandbox{}, err
	}
	return sandbox, nil
}

func start(dir, base string, owner json.RawMessage, args []string) (Sandbox, error) {
	if err := os.WriteFile(filepath.Join(dir, ownerFile), owner, 0o600); err != nil {
		return Sandbox{}, err
	}
	log, err := os.OpenFile(filepath.Join(dir, logFile), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return Sandbox{}, err
	}
	defer log.Close()
	child := exec.Command("/proc/self/exe", append([]string{"serve", "--base", base, "--remove", dir}, args...)...)
	child.Stderr, child.Dir, child.SysProcAttr = log, "/", &syscall.SysProcAttr{Setsid: true}
	if err := child.Start(); err != nil {
		return Sandbox{}, err
	}
	ended := make(chan error, 1)
	go func() { ended <- child.Wait() }()
	_, began := readStart(child.Process.Pid)
	text, _ := json.Marshal(process{child.Process.Pid, began})
	if err := os.WriteFile(filepath.Join(dir, runnerFile), text, 0o600); err != nil {
		_ = child.Process.Kill()
		return Sandbox{}, err
	}
	late := time.After(startTimeout)
	for {
		if _, err := os.Stat(filepath.Join(base, "run", "socket")); err == nil {
			return Read(base), nil
		}
		select {
		case err := <-ended:
			return Sandbox{}, fmt.Errorf("the runner ended at once (%v)", err)
		case <-late:
			return Sandbox{}, fmt.Errorf("the runner does not listen after %v", startTimeout)
		case <-time.After(pollInterval):
		}
	}
}

// Read returns the state of the runner of base.
func Read(base string) Sandbox {
	dir := filepath.Dir(base)
	sandbox := Sandbox{Base: base, State: "ended", Log: tail(filepath.Join(dir, logFile))}
	owner, err := bounded.ReadWhole(filepath.Join(dir, ownerFile), bounded.SettingSize)
	if err == nil && json.Valid(owner) {
		sandbox.Owner = owner
	}
	if info, err := os.Stat(filepath.Join(dir, ownerFile)); err == nil {
		sandbox.CreatedAt = float64(info.ModTime().UnixMilli()) / 1000
	}
	left, err := bounded.ReadWhole(filepath.Join(dir, leftFile), bounded.TableSize)
	if !errors.Is(err, fs.ErrNotExist) && (err != nil || json.Unmarshal(left, &sandbox.Left) != nil) {
		sandbox.Left = []string{"it could not be removed"}
	}
	if p := readRecord(dir); p.PID != 0 {
		if state, start := readStart(p.PID); start == p.Start && start != 0 {
			sandbox.State, sandbox.PID = "alive", p.PID
			if state == 'T' || state == 't' {
				sandbox.State = "stopped"
			}
		}
	}
	return sandbox
}

// End ends the runner of base: first by SIGTERM, upon which the runner ends its slots, then by
// force. It removes the directory, or leaves the entries that cannot be removed (Left).
func End(base string) (Sandbox, error) {
	dir := filepath.Dir(base)
	if !strings.HasPrefix(filepath.Base(dir), prefix) {
		return Sandbox{}, fmt.Errorf("end: %s is not %s…/NAME", base, prefix)
	}
	sandbox := Read(base)
	for _, step := range []struct {
		signal syscall.Signal
		within time.Duration
	}{{syscall.SIGTERM, endTimeout}, {syscall.SIGKILL, killTimeout}} {
		if sandbox.State == "ended" {
			break
		}
		if err := syscall.Kill(sandbox.PID, step.signal); err != nil && err != syscall.ESRCH {
			return sandbox, fmt.Errorf("end of process %d: %w", sandbox.PID, err)
		}
		for until := time.Now().Add(step.within); sandbox.State != "ended" && time.Now().Before(until); {
			time.Sleep(pollInterval)
			sandbox = Read(base)
		}
	}
	if err := private.Check(filepath.Dir(dir)); err != nil {
		return sandbox, fmt.Errorf("%s is kept: %w", dir, err)
	}
	removeGroups(filepath.Join(base, "groups"))
	sandbox.Left = Remove(dir)
	return sandbox, nil
}

// Remove removes the directory of a runner that has ended. If something stays, the directory keeps
// its owner and lists the reasons, so that nobody has to try it again.
func Remove(dir string) (left []string) {
	owner, _ := bounded.ReadWhole(filepath.Join(dir, ownerFile), bounded.SettingSize)
	mounts, err := proc.Mounts()
	if err != nil {
		left = append(left, err.Error())
	}
	for _, m := range mounts {
		if strings.HasPrefix(m.Path, dir+"/") {
			left = append(left, m.Path+" is mounted")
		}
	}
	if len(left) == 0 {
		left = wipe.RemoveTree(dir)
	}
	if len(left) > 0 {
		text, _ := json.Marshal(left)
		if len(owner) > 0 {
			_ = os.WriteFile(filepath.Join(dir, ownerFile), owner, 0o600)
		}
		_ = os.WriteFile(filepath.Join(dir, leftFile), text, 0o600)
	}
	return left
}

// List returns the runners of this user whose directories are in directory.
func List(directory string) ([]Sandbox, error) {
	sandboxes := []Sandbox{}
	err := bounded.EachName(directory, func(name string) bool {
		if !strings.HasPrefix(name, prefix) {
			return true
		}
		var st syscall.Stat_t
		if err := syscall.Lstat(filepath.Join(directory, name), &st); err != nil || int(st.Uid) != os.Geteuid() ||
			st.Mode&syscall.S_IFMT != syscall.S_IFDIR {
			return true
		}
		sandbox := Read(filepath.Join(directory, name, "base"))
		if sandbox.Log = ""; sandbox.Owner != nil {
			sandboxes = append(sandboxes, sandbox)
		}
		return true
	})
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	slices.SortFunc(sandboxes, func(a, b Sandbox) int { return strings.Compare(a.Base, b.Base) })
	return sandboxes, nil
}

func readRecord(dir string) (p process) {
	if text, err := bounded.ReadWhole(filepath.Join(dir, runnerFile), bounded.SettingSize); err == nil {
		_ = json.Unmarshal(text, &p)
	}
	return p
}

// readStart returns the state and the start time of a living process; 0 for a missing process or a
// zombie.
func readStart(pid int) (state byte, start uint64) {
	p, ok := proc.ParseStat(proc.Read(fmt.Sprintf("/proc/%d/stat", pid), make([]byte, 4096)))
	if !ok {
		return 0, 0
	}
	return p.State, p.Start
}

func tail(path string) string {
	file, err := os.Open(path)
	if err != nil {
		return ""
	}
	defer file.Close()
	if info, err := file.Stat(); err == nil && info.Size() > logTailSize {
		_, _ = file.Seek(-logTailSize, io.SeekEnd)
	}
	text, _, _ := bounded.Read(file, logTailSize)
	return strings.ToValidUTF8(string(text), "?")
}

// removeGroups removes the cgroups whose path prefixes a runner has recorded. A cgroup with
// processes stays.
func removeGroups(listPath string) {
	text, err := bounded.ReadWhole(listPath, bounded.TableSize)
	if err != nil {
		return // a runner that ends by itself removes both
	}
	until := time.Now().Add(time.Second)
	for beginning := range strings.Lines(string(text)) {
		beginning = filepath.Clean(strings.TrimSpace(beginning))
		if !strings.HasPrefix(filepath.Base(beginning), prefix) {
			continue
		}
		groups, _ := filepath.Glob(beginning + "*")
		for _, group := range groups {
			for errors.Is(os.Remove(group), syscall.EBUSY) && time.Now().Before(until) {
				time.Sleep(pollInterval)
			}
		}
	}
}
