package agent

import (
	"sync"
	"syscall"

	"hermes-exec/runner/internal/bell"
	"hermes-exec/runner/internal/ipc"
	"hermes-exec/runner/internal/memory"
	"hermes-exec/runner/internal/proc"
)

// keptEnded is how many commands that have ended stay known, so that what
// they left running can still be found by its session.
const keptEnded = 4096

// command is a process that was asked for. All fields are the table's.
type command struct {
	token   uint64
	pid     int
	start   uint64      // clock ticks after boot, 0 unknown
	losses  memory.Mark // when it started
	entries int64       // the table's when it started
	shared  bool        // others ran when it started
	ticket  uint64      // of its fork while that is in flight
	ended   bool
	endedAt uint64 // clock ticks after boot, when it was found to have ended
	killed  bool   // by us
	cwd     string
	replied bool
	exit    *ipc.Exit
}

type status struct {
	wait  syscall.WaitStatus
	usage syscall.Rusage
	at    uint64 // the newest fork that had begun when it was reaped
}

// table knows the commands and pairs them with what the reaper finds.
type table struct {
	mu       sync.Mutex
	byToken  map[uint64]*command
	byPID    map[int]*command
	old      []uint64
	entries  int64             // commands so far
	ticket   uint64            // of the newest fork
	inflight map[uint64]uint64 // when forks began whose pid is not entered yet, in clock ticks, by ticket
	early    map[int]status    // reaped while a fork was in flight
	traced   map[int]bool      // stopped under trace while a fork was in flight
	changed  chan struct{}     // closed and replaced whenever a process has ended
	forked   bell.Bell         // for a reaper that has no children
}

func (t *table) init() {
	t.byToken, t.byPID, t.early = map[uint64]*command{}, map[int]*command{}, map[int]status{}
	t.inflight, t.traced = map[uint64]uint64{}, map[int]bool{}
	t.changed = make(chan struct{})
	t.forked.Init()
}

// expect is called before each attempt to fork, entered or abandoned after the
// last one. A status that was reaped before the attempt is of an earlier
// process with the same pid.
func (t *table) expect(c *command) {
	t.mu.Lock()
	delete(t.inflight, c.ticket)
	t.ticket++
	c.ticket = t.ticket
	t.inflight[c.ticket] = c.start
	t.forgetEarly()
	t.mu.Unlock()
}

func (t *table) settle(c *command) {
	delete(t.inflight, c.ticket)
	t.forgetEarly()
}

// forgetEarly drops what was reaped before all forks that are in flight: under
// constant load there is always one in flight.
func (t *table) forgetEarly() {
	if len(t.early) == 0 {
		return
	}
	oldest := t.ticket + 1
	for ticket := range t.inflight {
		oldest = min(oldest, ticket)
	}
	for pid, s := range t.early {
		if s.at < oldest {
			delete(t.early, pid)
		}
	}
}

// reapedEarly gives the status of a command that ended before its fork returned.
func (t *table) reapedEarly(pid int, c *command) (status, bool) {
	s, ok := t.early[pid]
	return s, ok && s.at >= c.ticket
}

func (t *table) abandoned(c *command) {
	t.mu.Lock()
	t.settle(c)
	t.mu.Unlock()
	t.wake()
}

// entered records a command that runs, or has already ended. A caller that
// waits for the command itself need not wake the reaper.
func (t *table) entered(c *command) (end *status) {
	t.mu.Lock()
	t.entries++
	c.entries, c.shared = t.entries, len(t.byPID) > 0
	if s, ok := t.reapedEarly(c.pid, c); ok {
		delete(t.early, c.pid)
		end = &s
		c.ended, c.endedAt = true, proc.BootTicks()
	} else {
		t.byPID[c.pid] = c
	}
	t.byToken[c.token] = c
	t.old = append(t.old, c.token)
	t.forget()
	t.settle(c)
	t.mu.Unlock()
	return end
}

// wake tells a reaper without children that there is one.
func (t *table) wake() { t.forked.Ring() }

// forget drops the oldest commands that have ended.
func (t *table) forget() {
	if len(t.old) < 2*keptEnded {
		return
	}
	kept := t.old[:0]
	drop := len(t.old) - keptEnded
	for _, token := range t.old {
		if c := t.byToken[token]; drop > 0 && c != nil && c.ended {
			delete(t.byToken, token)
			drop--
			continue
		}
		kept = append(kept, token)
	}
	t.old = kept
}

// reaped takes the status of pid off the table: the command it was, or nil.
func (t *table) reaped(pid int, s status) *command {
	t.mu.Lock()
	defer t.mu.Unlock()
	c := t.byPID[pid]
	if c != nil {
		delete(t.byPID, pid)
		c.ended, c.endedAt = true, proc.BootTicks()
	} else if len(t.inflight) > 0 {
		s.at = t.ticket
		t.early[pid] = s
	}
	close(t.changed)
	t.changed = make(chan struct{})
	return c
}

func (t *table) get(token uint64) (command, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	c := t.byToken[token]
	if c == nil {
		return command{}, false
	}
	return *c, true
}

// whileAlive runs do while the leader can not be reaped, so that its pid is
// still its own.
func (t *table) whileAlive(token uint64, do func(pid int) error) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	c := t.byToken[token]
	if c == nil || c.ended {
		return syscall.ESRCH
	}
	return do(c.pid)
}

func (t *table) update(token uint64, change func(c *command)) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if c := t.byToken[token]; c != nil {
		change(c)
	}
}

// announce sends the exit of c, after the reply that it was spawned.
func (a *agent) announce(c *command, exit ipc.Exit) {
	a.table.mu.Lock()
	if !c.replied {
		c.exit = &exit
		a.table.mu.Unlock()
		return
	}
	a.table.mu.Unlock()
	_ = a.conn.Event(ipc.EventExit, exit)
}

func (a *agent) repliedTo(c *command) {
	a.table.mu.Lock()
	c.replied = true
	exit := c.exit
	a.table.mu.Unlock()
	if exit != nil {
		_ = a.conn.Event(ipc.EventExit, *exit)
	}
}

// finish reports the end of a command.
func (a *agent) finish(c *command, s status) { a.announce(c, a.exitOf(c, s)) }

// exitOf turns a wait status into an Exit.
func (a *agent) exitOf(c *command, s status) ipc.Exit {
	exit := ipc.Exit{
		Token: c.token, UserS: seconds(s.usage.Utime), SystemS: seconds(s.usage.Stime), MaxRSS: maxRSS(s.usage),
	}
	if s.wait.Signaled() {
		exit.Signal = int(s.wait.Signal())
		exit.ExitCode = 128 + exit.Signal
	} else {
		exit.ExitCode = s.wait.ExitStatus()
	}
	a.table.mu.Lock()
	killed, alone := c.killed, !c.shared && c.entries == a.table.entries
	exit.Cwd = ipc.Bytes(c.cwd)
	a.table.mu.Unlock()
	exit.OOMKilled = a.losses.LostToOOM(c.losses, exit, killed, alone)
	return exit
}

func seconds(t syscall.Timeval) float64 { return float64(t.Sec) + float64(t.Usec)/1e6 }
