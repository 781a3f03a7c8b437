package children

import (
	"sync"
	"sync/atomic"
	"syscall"

	"hermes-exec/runner/internal/bell"
	"hermes-exec/runner/internal/ipc"
	"hermes-exec/runner/internal/memory"
	"hermes-exec/runner/internal/proc"
)

// maxEndedCommands is how many ended commands stay in the table, so that their left-over processes
// can still be found by session.
const maxEndedCommands = 4096

// Command is a command that was started. All fields belong to the table, except those that are set
// before Enter.
type Command struct {
	Token uint64
	PID   int
	Start uint64 // clock ticks after boot, 0 if unknown

	Ended   bool
	EndedAt uint64 // clock ticks after boot, when the end was noticed

	oomMark    memory.Mark // when it started
	entries    int64       // the table's count when it started
	overlapped bool        // others ran when it started
	ticket     uint64      // of its fork while that is in flight
	killed     bool        // by the agent
	cwd        string
	replied    bool
	exit       *ipc.Exit
}

type status struct {
	wait  syscall.WaitStatus
	usage syscall.Rusage
	at    uint64 // the newest fork that had begun when it was reaped
}

// Table holds the commands and pairs them with the statuses of the reaper.
type Table struct {
	// OOM counts the processes that were killed for lack of memory.
	OOM    memory.OOMCounter
	report func(ipc.Exit)

	StrayCounter

	mu sync.Mutex
	forks
	byToken map[uint64]*Command
	byPID   map[int]*Command
	tokens  []uint64
	entries int64         // commands so far
	changed chan struct{} // closed and replaced whenever a process has ended
	forked  bell.Bell     // wakes a reaper that has no children
}

// NewTable makes a Table that calls report for the exit of each command.
func NewTable(report func(ipc.Exit)) *Table {
	t := &Table{report: report}
	t.byToken, t.byPID, t.earlyExits = map[uint64]*Command{}, map[int]*Command{}, map[int]status{}
	t.inflight, t.traced = map[uint64]uint64{}, map[int]bool{}
	t.changed = make(chan struct{})
	t.forked.Init()
	return t
}

// forks are the forks in flight, and the statuses that were reaped meanwhile.
type forks struct {
	ticket     uint64            // of the newest fork
	inflight   map[uint64]uint64 // start times of forks whose pid is not entered yet, in clock ticks, by ticket
	earlyExits map[int]status    // reaped while a fork was in flight
	traced     map[int]bool      // stopped under trace while a fork was in flight
}

// StrayCounter counts processes that end while kills are under way: orphans, and the leaders of
// commands that are being killed.
type StrayCounter struct {
	sweeps atomic.Int32 // kills under way
	count  atomic.Uint64
}

// Sweep counts strays until end is called.
func (s *StrayCounter) Sweep() (end func()) {
	s.sweeps.Add(1)
	return func() { s.sweeps.Add(-1) }
}

// Count returns how many strays there were so far.
func (s *StrayCounter) Count() uint64 { return s.count.Load() }

// Begin returns a command that is about to be started.
func (t *Table) Begin(token uint64) *Command {
	return &Command{Token: token, Start: proc.BootTicks(), oomMark: t.OOM.Mark()}
}

// Expect is called before each attempt to fork, and Enter or Abandon after the last one. A status
// that was reaped before the attempt belongs to an earlier process with the same pid.
func (t *Table) Expect(c *Command) {
	t.mu.Lock()
	delete(t.inflight, c.ticket)
	t.ticket++
	c.ticket = t.ticket
	t.inflight[c.ticket] = c.Start
	t.forgetEarly()
	t.mu.Unlock()
}

func (t *forks) settle(c *Command) {
	delete(t.inflight, c.ticket)
	t.forgetEarly()
}

// forgetEarly drops statuses that were reaped before all forks in flight. Under constant load there
// is always a fork in flight.
func (t *forks) forgetEarly() {
	if len(t.earlyExits) == 0 {
		return
	}
	oldest := t.ticket + 1
	for ticket := range t.inflight {
		oldest = min(oldest, ticket)
	}
	for pid, s := range t.earlyExits {
		if s.at < oldest {
			delete(t.earlyExits, pid)
		}
	}
}

// earlyStatus returns the status of a command that ended before its fork returned.
func (t *forks) earlyStatus(pid int, c *Command) (status, bool) {
	s, ok := t.earlyExits[pid]
	return s, ok && s.at >= c.ticket
}

// Abandon gives up a command whose last attempt has failed.
func (t *Table) Abandon(c *Command) {
	t.mu.Lock()
	t.settle(c)
	t.mu.Unlock()
	t.Wake()
}

// Enter records a command that runs or has already ended. A caller that waits for the command
// itself need not wake the reaper.
func (t *Table) Enter(c *Command) {
	if end := t.record(c); end != nil {
		t.announce(c, t.exitOf(c, *end))
	}
}

// record enters a command and returns its status if it has already ended.
func (t *Table) record(c *Command) (end *status) {
	t.mu.Lock()
	t.entries++
	c.entries, c.overlapped = t.entries, len(t.byPID) > 0
	if s, ok := t.earlyStatus(c.PID, c); ok {
		delete(t.earlyExits, c.PID)
		end = &s
		c.Ended, c.EndedAt = true, proc.BootTicks()
	} else {
		t.byPID[c.PID] = c
	}
	t.byToken[c.Token] = c
	t.tokens = append(t.tokens, c.Token)
	t.tokens = forget(t.tokens, t.byToken)
	t.settle(c)
	t.mu.Unlock()
	return end
}

// Wake wakes a reaper that had no children.
func (t *Table) Wake() { t.forked.Ring() }

// forget drops the oldest commands that have ended.
func forget(old []uint64, byToken map[uint64]*Command) []uint64 {
	if len(old) < 2*maxEndedCommands {
		return old
	}
	kept := old[:0]
	drop := len(old) - maxEndedCommands
	for _, token := range old {
		if c := byToken[token]; drop > 0 && c != nil && c.Ended {
			delete(byToken, token)
			drop--
			continue
		}
		kept = append(kept, token)
	}
	return kept
}

// recordEnd removes pid from the running processes and returns its command, or nil.
func (t *Table) recordEnd(pid int, s status) *Command {
	t.mu.Lock()
	defer t.mu.Unlock()
	c := t.byPID[pid]
	if c != nil {
		delete(t.byPID, pid)
		c.Ended, c.EndedAt = true, proc.BootTicks()
	} else if len(t.inflight) > 0 {
		s.at = t.ticket
		t.earlyExits[pid] = s
	}
	close(t.changed)
	t.changed = make(chan struct{})
	return c
}

// Get returns a copy of a command.
func (t *Table) Get(token uint64) (Command, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	c := t.byToken[token]
	if c == nil {
		return Command{}, false
	}
	return *c, true
}

// WhileAlive runs do while the leader cannot be reaped, so that its pid cannot be reused.
func (t *Table) WhileAlive(token uint64, do func(pid int) error) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	c := t.byToken[token]
	if c == nil || c.Ended {
		return syscall.ESRCH
	}
	return do(c.PID)
}

// MarkKilled records that a command is being killed, and its working directory.
func (t *Table) MarkKilled(token uint64, findCwd func(pid int) string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	c := t.byToken[token]
	if c == nil || c.Ended {
		return
	}
	c.killed = true
	if cwd := findCwd(c.PID); cwd != "" {
		c.cwd = cwd
	}
}

// MarkAllKilled records that all commands are being killed, and returns their tokens.
func (t *Table) MarkAllKilled() (tokens []uint64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, c := range t.byPID {
		c.killed = true
		tokens = append(tokens, c.Token)
	}
	return tokens
}

// announce reports the exit of c, but not before the reply to its spawn.
func (t *Table) announce(c *Command, exit ipc.Exit) {
	t.mu.Lock()
	if !c.replied {
		c.exit = &exit
		t.mu.Unlock()
		return
	}
	t.mu.Unlock()
	t.report(exit)
}

// ConfirmReply records that the reply has been sent, and reports an exit that waited for it.
func (t *Table) ConfirmReply(c *Command) {
	t.mu.Lock()
	c.replied = true
	exit := c.exit
	t.mu.Unlock()
	if exit != nil {
		t.report(*exit)
	}
}

// exitOf turns a wait status into an Exit.
func (t *Table) exitOf(c *Command, s status) ipc.Exit {
	exit := ipc.Exit{
		Token: c.Token, UserS: seconds(s.usage.Utime), SystemS: seconds(s.usage.Stime), MaxRSS: maxRSS(s.usage),
	}
	if s.wait.Signaled() {
		exit.Signal = int(s.wait.Signal())
		exit.ExitCode = 128 + exit.Signal
	} else {
		exit.ExitCode = s.wait.ExitStatus()
	}
	t.mu.Lock()
	killed, alone := c.killed, !c.overlapped && c.entries == t.entries
	exit.Cwd = ipc.Bytes(c.cwd)
	t.mu.Unlock()
	exit.OOMKilled = t.OOM.IsOutOfMemory(c.oomMark, exit, killed, alone)
	return exit
}

func seconds(t syscall.Timeval) float64 { return float64(t.Sec) + float64(t.Usec)/1e6 }
