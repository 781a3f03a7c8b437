package tenants

import (
	"cmp"
	"errors"
	"maps"
	"os"
	"slices"
	"strconv"
	"syscall"
	"time"

	"hermes-exec/runner/internal/accounts"
	"hermes-exec/runner/internal/children"
	"hermes-exec/runner/internal/initproc"
	"hermes-exec/runner/internal/ipc"
	"hermes-exec/runner/internal/isolation"
	"hermes-exec/runner/internal/proc"
	"hermes-exec/runner/internal/rights"
)

const (
	killBudget = 4 * time.Second
	// minRounds: a runner that was stopped meanwhile does not give up before.
	minRounds = 10
	minPause  = 500 * time.Microsecond
	maxPause  = 20 * time.Millisecond
	// freezeRounds: after so many rounds processes fork faster than they are killed.
	freezeRounds = 3
	// freezeAllRounds: after so many rounds even stopping one by one does not catch up. Above
	// crowdSize processes all are stopped at once.
	freezeAllRounds = 12
	crowdSize       = 32
)

// sweep is one kill. It remembers every process that it has seen.
type sweep struct {
	t           *Tenants
	stop        func()
	whole       bool // all processes of the slot are to be killed
	find        func(seen map[proc.Key]bool) (map[int]proc.Process, []string, error)
	began       time.Time
	seen        map[proc.Key]bool
	handles     map[string]bool
	rounds      int
	left        int
	emptyPasses int  // consecutive passes that found no process
	doubtful    bool // a process ended during the last pass and may have forked before
	failed      bool
	deadline    time.Time
}

func (t *Tenants) newSweep(find func(map[proc.Key]bool) (map[int]proc.Process, []string, error),
	budget time.Duration) *sweep {
	now := time.Now()
	return &sweep{t: t, stop: t.table.Sweep(), find: find, began: now, seen: map[proc.Key]bool{},
		handles: map[string]bool{}, deadline: now.Add(budget)}
}

// end must be called after the last pass.
func (s *sweep) end() { s.stop() }

// pass scans once. It returns the living processes and how many of them are new.
func (s *sweep) pass() (alive map[int]proc.Process, fresh int) {
	s.rounds++
	before := s.t.table.Count()
	alive, handles, err := s.find(s.seen)
	s.failed = err != nil
	// Processes that are not reaped yet are counted before they are reaped.
	s.doubtful = initproc.HasDeadChild() || s.t.table.Count() != before
	for _, p := range alive {
		if id := p.Key(); !s.seen[id] {
			s.seen[id] = true
			fresh++
		}
	}
	for _, h := range handles {
		s.handles[h] = true
	}
	s.left = len(alive)
	if s.emptyPasses++; s.left > 0 || s.failed {
		s.emptyPasses = 0
	}
	return alive, fresh
}

// confirmEmpty reports whether it is proven that no process of the slot is left, and records it.
// This costs less than a scan of all processes.
func (s *sweep) confirmEmpty() bool {
	if !s.whole || !s.t.rooted || !initproc.HasNoChildren() {
		return false
	}
	s.left, s.failed, s.doubtful = 0, false, false
	return true
}

// isProven reports whether two consecutive passes have found no process and none ended meanwhile. A
// listed process may have forked and ended before the pass read it, and its child may have been
// missed.
func (s *sweep) isProven() bool { return s.emptyPasses >= 2 && !s.doubtful }

// settle waits shortly for killed processes to end.
func (s *sweep) settle() {
	for until := time.Now().Add(maxPause); time.Now().Before(until); {
		changed := s.t.table.OnChange()
		if s.confirmEmpty() {
			return
		}
		wait(changed, maxPause)
	}
}

// finish kills until it is proven that no process is left.
func (s *sweep) finish() {
	pause := minPause
	for rounds := 0; !s.isProven() && !s.confirmEmpty(); rounds++ {
		changed := s.t.table.OnChange()
		alive, fresh := s.pass()
		if s.emptyPasses > 0 && !s.doubtful {
			continue
		}
		if rounds >= minRounds && time.Now().After(s.deadline) {
			return
		}
		crowded := len(alive) > crowdSize || rounds >= freezeAllRounds
		if (fresh > 0 || s.doubtful) && crowded && s.freezeSlot() {
			pause = minPause
		} else {
			if fresh > 0 && rounds >= freezeRounds {
				alive = s.freeze(alive)
			}
			s.signalAll(alive, syscall.SIGKILL)
		}
		if fresh > 0 {
			pause = minPause
		}
		wait(changed, pause)
		pause = min(2*pause, maxPause)
	}
}

// freeze stops processes until no new ones appear, so that they can be killed without others
// appearing meanwhile.
func (s *sweep) freeze(alive map[int]proc.Process) map[int]proc.Process {
	for range 50 {
		if time.Now().After(s.deadline) {
			return alive
		}
		s.signalAll(alive, syscall.SIGSTOP)
		var fresh int
		if alive, fresh = s.pass(); fresh == 0 {
			break
		}
	}
	return alive
}

// freezeSlot stops the whole slot, kills the processes of the sweep and continues the rest, except
// processes that were stopped before. A running crowd takes all processor time and changes faster
// than it can be listed.
func (s *sweep) freezeSlot() bool {
	before, err := s.t.snapshot()
	if err != nil || !s.t.signalSlot(syscall.SIGSTOP) {
		return false
	}
	// A stop takes effect when its process returns from the kernel.
	alive, fresh := s.pass()
	for range 10 {
		if fresh == 0 {
			break
		}
		alive, fresh = s.pass()
	}
	s.signalAll(alive, syscall.SIGKILL)
	now, err := s.t.snapshot()
	if err != nil {
		now = before
	}
	for pid, p := range s.t.selectSlot(now) {
		if _, ours := alive[pid]; !ours && before[pid].State != 'T' {
			signalProc(p, syscall.SIGCONT)
		}
	}
	return true
}

func wait(changed <-chan struct{}, at time.Duration) {
	timer := time.NewTimer(at)
	defer timer.Stop()
	select {
	case <-changed:
	case <-timer.C:
	}
}

// signalAll signals the oldest first: a parent must not see its children end and then exit with a
// status of its own.
func (s *sweep) signalAll(procs map[int]proc.Process, sig syscall.Signal) {
	byAge := slices.SortedFunc(maps.Values(procs), func(a, b proc.Process) int {
		return cmp.Or(cmp.Compare(a.Start, b.Start), cmp.Compare(a.PID, b.PID))
	})
	for _, p := range byAge {
		signalProc(p, sig)
	}
}

// signalProc signals a process, and never another process that has its pid meanwhile.
func signalProc(p proc.Process, sig syscall.Signal) {
	fd, err := proc.PidfdOpen(p.PID)
	if err == nil {
		defer syscall.Close(fd)
	} else if err == syscall.ESRCH {
		return
	}
	var buf [1024]byte
	now, ok := proc.ParseStat(proc.Read("/proc/"+strconv.Itoa(p.PID)+"/stat", buf[:]))
	if !ok || now.Start != p.Start {
		return
	}
	if err != nil {
		_ = syscall.Kill(p.PID, sig)
		return
	}
	_ = proc.PidfdSignal(fd, sig)
}

// signalSlot signals all processes of the slot in one step that no fork can escape. It returns
// false if the kernel does not allow that.
func (t *Tenants) signalSlot(sig syscall.Signal) bool {
	switch {
	case t.setup.View.Pids && os.Getpid() == 1 && os.Getppid() == 0:
		return syscall.Kill(-1, sig) == nil
	case t.setup.Switch && t.setup.Level != isolation.Exclusive && t.setup.UID != 0:
		return t.AsUser(t.user, func() error { return syscall.Kill(-1, sig) }) == nil
	}
	return false
}

// AsUser is rights.AsUser on a thread that has the user's file system rights: the switch back to
// root resets those, so they are set again.
func (t *Tenants) AsUser(user accounts.User, do func() error) error {
	err := rights.AsUser(user.UID, user.GID, do)
	if again := rights.ThreadFS(user.UID, user.GID, user.Groups); err == nil {
		err = again
	}
	return err
}

func (s *sweep) receipt() ipc.Receipt {
	handles := make([]string, 0, len(s.handles))
	for h := range s.handles {
		handles = append(handles, h)
	}
	slices.Sort(handles)
	left := s.left
	if s.failed || s.doubtful {
		left = max(left, 1)
	}
	return ipc.Receipt{Found: len(s.seen), Killed: max(0, len(s.seen)-left), Left: left, Rounds: s.rounds,
		Handles: handles, DurationS: time.Since(s.began).Seconds()}
}

// Kill ends one command with all its descendants.
func (t *Tenants) Kill(request ipc.Kill) (ipc.Receipt, error) {
	c, _ := t.table.Get(request.Token) // the processes of a command that is forgotten still have its mark
	var receipt ipc.Receipt
	t.threads.Do(func() { receipt = t.killCommand(c, request) })
	return receipt, nil
}

func (t *Tenants) killCommand(c children.Command, request ipc.Kill) ipc.Receipt {
	c.Token = request.Token
	grace := time.Duration(min(max(request.GraceS, 0), 3) * float64(time.Second))
	s := t.newSweep(func(seen map[proc.Key]bool) (map[int]proc.Process, []string, error) {
		return t.treeOf(c, request.Since, seen)
	}, killBudget)
	defer s.end()
	alive, _ := s.pass()
	if request.Since == 0 {
		t.table.MarkKilled(request.Token, func(pid int) string {
			cwd, _ := os.Readlink("/proc/" + strconv.Itoa(pid) + "/cwd")
			return cwd
		})
	}
	if len(alive) > 0 && grace > 0 {
		s.terminate(alive, grace)
	}
	s.finish()
	return s.receipt()
}

// terminate sends SIGTERM, continues stopped processes so that they can handle it, and waits up to
// grace.
func (s *sweep) terminate(alive map[int]proc.Process, grace time.Duration) {
	s.signalAll(alive, syscall.SIGTERM)
	s.signalAll(alive, syscall.SIGCONT)
	until := time.Now().Add(grace)
	pause := minPause
	for {
		changed := s.t.table.OnChange()
		alive, _ = s.pass()
		rest := time.Until(until)
		if len(alive) == 0 || rest <= 0 {
			return
		}
		wait(changed, min(pause, rest))
		pause = min(2*pause, maxPause)
	}
}

// errForking means that a process was skipped because it may be a command that is not entered yet.
var errForking = errors.New("a command is being started")

// treeOf returns the living processes of a command that have started at the time since or later.
func (t *Tenants) treeOf(c children.Command, since uint64, seen map[proc.Key]bool) (map[int]proc.Process, []string,
	error) {
	all, err := t.snapshot()
	if err != nil {
		return nil, nil, err
	}
	tenants := t.selectSlot(all)
	// Where no group names the command, a process without any handle may belong to it if it started later.
	evasive := t.setup.Track.Count == 0
	claimed := t.claim(tenants, evasive)
	out := map[int]proc.Process{}
	var handles []string
	for pid, p := range tenants {
		switch {
		case p.Start < since:
		case claimed.token[pid] == c.Token && c.Token != 0:
			out[pid] = p
			handles = append(handles, claimed.handle[pid])
		case seen[p.Key()]:
			out[pid] = p
		case evasive && claimed.handle[pid] == "" && c.Start > 0:
			oldest, top := oldestStart(p, tenants)
			switch {
			case oldest < c.Start: // of an older process
			case top.Parent == os.Getpid() && top.Start >= claimed.forking:
				err = errForking
			default:
				out[pid] = p
				handles = append(handles, handleStartTime)
			}
		}
	}
	return out, handles, err
}

// oldestStart returns the earliest start of a process and its ancestors, and the topmost of them.
func oldestStart(p proc.Process, all map[int]proc.Process) (oldest uint64, top proc.Process) {
	oldest = p.Start
	for each := range proc.Lineage(all, p) {
		oldest, top = min(oldest, each.Start), each
	}
	return oldest, top
}

// KillAll ends every process of the slot.
func (t *Tenants) KillAll() ipc.Receipt {
	t.killing.Lock()
	defer t.killing.Unlock()
	var receipt ipc.Receipt
	t.threads.Do(func() {
		t.table.MarkAllKilled()
		s := t.newSweep(t.findAll, killBudget)
		defer s.end()
		s.whole = true
		if !s.confirmEmpty() {
			// Stopped processes are listed faster, and do not fork.
			t.signalSlot(syscall.SIGSTOP)
			if alive, _ := s.pass(); len(alive) > 0 && t.signalSlot(syscall.SIGKILL) {
				s.settle()
			}
			s.finish()
		}
		receipt = s.receipt()
	})
	return receipt
}

func (t *Tenants) findAll(seen map[proc.Key]bool) (map[int]proc.Process, []string, error) {
	all, err := t.snapshot()
	if err != nil {
		return nil, nil, err
	}
	out := t.selectSlot(all)
	for pid, p := range all {
		if seen[p.Key()] {
			out[pid] = p
		}
	}
	handle := "descendants"
	switch {
	case t.setup.View.Pids:
		handle = "pid_namespace"
	case t.setup.Level == isolation.Exclusive:
		handle = "sandbox"
	case t.setup.Switch:
		handle = "uid"
	}
	if len(out) == 0 {
		return out, nil, nil
	}
	return out, []string{handle}, nil
}
