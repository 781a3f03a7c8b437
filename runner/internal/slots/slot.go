package slots

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"syscall"

	"hermes-exec/runner/internal/bounded"
	"hermes-exec/runner/internal/cgroup"
	"hermes-exec/runner/internal/diskspace"
	"hermes-exec/runner/internal/environ"
	"hermes-exec/runner/internal/ipc"
	"hermes-exec/runner/internal/isolation"
	"hermes-exec/runner/internal/layers"
	"hermes-exec/runner/internal/link"
	"hermes-exec/runner/internal/shared"
	"hermes-exec/runner/internal/slotdisk"
	"hermes-exec/runner/internal/users"
	"hermes-exec/runner/internal/wipe"
)

// slot is one workspace with one holder at a time. mu is held while its state changes: creating,
// starting the agent, resetting, destroying.
type slot struct {
	level
	waste     []*wipe.DiscardedTree // discarded by resets, and perhaps not removed yet
	container bool                  // the slot sees the image's files, and may write to some
	unused    bool                  // no agent was started since the slot was made or reset

	monitor diskspace.Monitor
	disk    *slotdisk.Disk // of the last agent, if the slot has one in a file

	relief link.CPURelief
	stack  layers.Stack // between the image and the changes of a slot with a root of its own

	mu   sync.Mutex
	gone bool

	liveMu     sync.Mutex
	running    *link.Agent
	deathError *ipc.Error // why the last agent ended unexpectedly
}

// modes are the modes of the slot's directories.
type modes struct{ own, tmp os.FileMode }

func (s *slot) create(p CreateParams) error {
	if err := s.choose(p); err != nil {
		return err
	}
	if err := s.chooseGPUs(&p); err != nil {
		return err
	}
	if err := s.chooseLimits(p); err != nil {
		return err
	}
	s.relief.Joins = s.setup.Cgroups
	if err := s.choosePaths(p); err != nil {
		return err
	}
	if err := s.makeDirs(); err != nil {
		return failure("internal", "slot %s: %v", s.id, err)
	}
	s.container = !p.PrivateRoot
	if s.container && s.leavesWithOthers() {
		s.m.cleaner.Find() // while no tenant has changed them
	}
	s.describe(p)
	s.env = environ.Base(p.PrivateRoot, p.Env, s.setup)
	if s.limited.isInMemory() {
		return nil // it writes to no file system that others can fill
	}
	s.monitor.Survey(s.setup.UID == 0, writablePaths(s.setup.Level, s.m.base)...)
	s.m.monitor.Store(&s.monitor)
	return nil
}

// writablePaths returns the paths with a slot's files: for an exclusive slot the whole sandbox.
func writablePaths(level, own string) []string {
	if level == isolation.Exclusive {
		return []string{own, "/"}
	}
	return []string{own}
}

// makeDirs makes new directories for the slot.
func (s *slot) makeDirs() error {
	if err := makeApart(s.dir); err != nil {
		return err
	}
	if err := s.openDir(); err != nil {
		return err
	}
	for _, part := range s.parts() {
		mode := s.modes.own
		if part == "tmp" || part == "var-tmp" {
			mode = s.modes.tmp
		}
		dir := filepath.Join(s.dir, part)
		if err := os.Mkdir(dir, 0o700); err != nil {
			return err
		}
		if uid, gid, ok := s.owner(); ok {
			if err := os.Lchown(dir, uid, gid); err != nil {
				return err
			}
		}
		if err := os.Chmod(dir, mode); err != nil {
			return err
		}
	}
	if err := s.fifoDir().Make(); err != nil {
		return err
	}
	if err := os.Mkdir(filepath.Join(s.dir, "root"), 0o755); err != nil && !errors.Is(err, os.ErrExist) {
		return err
	}
	return nil
}

// makeApart makes a directory, unless it is there. A name that was not used before puts it apart from
// the files of former holders (disk.Spread).
func makeApart(path string) error {
	dir, err := os.MkdirTemp(filepath.Dir(path), ".new-")
	if err != nil {
		return err
	}
	err = os.Rename(dir, path)
	if err == nil {
		return nil
	}
	if errors.Is(err, os.ErrExist) {
		err = nil
	}
	return errors.Join(err, os.Remove(dir))
}

// openDir lets the slot's user through its directory. If the slot has a user of its own, no other
// user gets through.
func (s *level) openDir() error {
	switch {
	case s.ownUID:
		if err := os.Lchown(s.dir, -1, int(s.setup.GID)); err != nil {
			return err
		}
		return os.Chmod(s.dir, 0o710)
	case s.setup.Switch || s.setup.Level == isolation.Exclusive:
		return os.Chmod(s.dir, 0o711)
	}
	return nil
}

// owner returns the owner of the slot's directories if they have to be given to a user. A layer
// stays the runner's.
func (s *level) owner() (uid, gid int, ok bool) {
	return int(s.setup.UID), int(s.setup.GID), s.setup.Switch && s.image == nil
}

// remakeDirs is makeDirs after discardDirs. A full disk has room again once the last tenant's files
// are removed.
func (s *slot) remakeDirs() error {
	err := s.makeDirs()
	if err == nil || len(s.waste) == 0 {
		return err
	}
	s.m.trash.Settle(s.waste)
	for _, part := range s.parts() {
		_ = os.Remove(filepath.Join(s.dir, part))
	}
	return s.makeDirs()
}

// verify returns how the slot's directories differ from new ones.
func (s *slot) verify() []string {
	var out []string
	for _, part := range s.parts() {
		dir := filepath.Join(s.dir, part)
		st, err := os.Lstat(dir)
		if err != nil {
			out = append(out, err.Error())
			continue
		}
		sys, ok := st.Sys().(*syscall.Stat_t)
		uid, gid, owned := s.owner()
		if !st.IsDir() || !ok || owned && (int(sys.Uid) != uid || int(sys.Gid) != gid) {
			out = append(out, dir+" is not the slot's own directory")
			continue
		}
		if n, err := bounded.Count(dir, 1000); err != nil || n > 0 {
			out = append(out, fmt.Sprintf("%s holds %d entries (%v)", dir, n, err))
		}
	}
	return out
}

// reset must be called with mu held.
func (s *slot) reset(ctx context.Context) ResetResult {
	result := ResetResult{Killed: s.end(ctx), Differences: []string{}}
	if result.Killed.Left > 0 {
		result.Differences = append(result.Differences, fmt.Sprintf("%d processes are left", result.Killed.Left))
	} else if s.ownUID {
		s.m.ids.End(s.setup.UID)
	}
	if err := s.m.dir.Verify(); err != nil {
		result.Differences = append(result.Differences, err.Error())
		return result
	}
	result.Differences = append(result.Differences, s.discardDirs()...)
	if err := s.setStack(nil); err != nil {
		result.Differences = append(result.Differences, err.Error())
	}
	result.Differences = append(result.Differences, s.wipeShared()...)
	if err := s.renewUser(); err != nil {
		result.Differences = append(result.Differences, err.Error())
	}
	result.UID, result.GID = s.facts.UID, s.facts.GID
	if err := s.remakeDirs(); err != nil {
		result.Differences = append(result.Differences, err.Error())
	}
	result.Differences = append(result.Differences, s.verify()...)
	if err := s.relief.Err(); err != nil {
		result.Differences = append(result.Differences, err.Error())
	}
	if s.monitor.NearlyFull() {
		s.m.trash.Settle(s.waste) // a tree that is still being removed may have filled it
	}
	s.monitor.SurveyAgain()
	result.Clean = len(result.Differences) == 0
	s.unused = result.Clean
	s.liveMu.Lock()
	s.deathError = nil
	s.liveMu.Unlock()
	return result
}

// wipeShared removes the files and objects of the slot's holder in directories that the slot shares
// with others.
func (s *slot) wipeShared() []string {
	u := s.setup
	if !s.leavesWithOthers() {
		return nil
	}
	return s.m.cleaner.Remove(shared.Holder{UID: u.UID, GID: u.GID, Own: s.ownUID, Image: s.container,
		Files: !u.View.Pids || s.container, Objects: !u.View.Pids})
}

// discardDirs moves the slot's directories away at once, whatever they hold.
func (s *slot) discardDirs() []string {
	going, left := s.m.trash.SettleOnce(s.waste)
	s.waste = going
	if waste, err := s.m.trash.Discard(s.dir); err == nil {
		s.waste = append(s.waste, waste)
		waste.Wait(wipe.ResetGrace)
		return left
	}
	w := wipe.New(wipe.Timeout)
	for _, part := range s.parts() {
		w.Wipe(filepath.Join(s.dir, part))
	}
	return append(left, w.Problems...)
}

// end stops the agent and with it everything in the slot. An agent that died alone may have left
// processes that only another agent can find.
func (s *slot) end(ctx context.Context) ipc.Receipt {
	receipt := ipc.Receipt{Handles: []string{}}
	if s.disk != nil {
		defer s.disk.Close()
	}
	h, died := s.current()
	if h == nil && died == nil {
		return receipt
	}
	ctx = context.WithoutCancel(ctx) // the end of a slot is not cancelled halfway
	if h == nil && !s.setup.View.Pids {
		var err error
		if h, err = s.startSuccessor(ctx); err != nil {
			receipt.Left = 1
			return receipt
		}
	}
	if h != nil {
		receipt.Add(h.Stop(ctx))
	}
	return receipt
}

// startSuccessor starts an agent after an agent that died.
func (s *slot) startSuccessor(ctx context.Context) (*link.Agent, error) {
	s.setup.Successor = true
	defer func() { s.setup.Successor = false }()
	return s.start(ctx, nil)
}

// removeTraces removes everything of the slot in the sandbox besides processes. Files that the
// tenant of an exclusive slot left elsewhere stay in the sandbox.
func (s *slot) removeTraces() error {
	var left []string
	s.gpus.Release()
	if s.ownUID {
		s.m.ids.End(s.setup.UID)
	}
	if s.setup.Level != isolation.Exclusive {
		left = s.wipeShared()
	}
	problems := []error{s.setStack(nil)}
	if err := s.m.dir.Verify(); err != nil {
		problems = append(problems, err)
	} else if waste, err := s.m.trash.Discard(s.dir); err == nil {
		_, more := s.m.trash.Settle(append(s.waste, waste))
		left = append(left, more...)
	} else {
		w := wipe.New(wipe.Timeout)
		w.Wipe(s.dir)
		left = append(left, w.Problems...)
	}
	for _, p := range left {
		problems = append(problems, errors.New(p))
	}
	problems = append(problems, cgroup.Remove(s.setup.Cgroups))
	if s.named {
		problems = append(problems, users.RemoveName(s.setup.UserName))
	}
	return errors.Join(problems...)
}
