//go:build darwin

package agent

import (
	"os"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"syscall"
	"time"

	"hermes-exec/runner/internal/initproc"
	"hermes-exec/runner/internal/ipc"
	"hermes-exec/runner/internal/isolation"
	"hermes-exec/runner/internal/proc"
	"hermes-exec/runner/internal/program"
	"hermes-exec/runner/internal/room"
)

// platform is what only some systems give an agent.
type platform struct{ killer }

// killer ends processes of the slot.
type killer struct {
	*tenancy
	killing sync.Mutex // held while the whole slot is ended
}

func (a *agent) begin() { a.killer.tenancy = &a.tenancy }

func (a *agent) prepare(s isolation.Setup) (isolation.Ready, error) {
	if a.ready.Load() {
		return isolation.Ready{}, &ipc.Error{Kind: "internal", Message: "the agent is set up already"}
	}
	a.setup = s
	a.slotUser = isolation.User{Name: s.UserName, UID: s.UID, GID: s.GID, Home: s.Home}
	asIs := func() error { return nil }
	if err := a.startLanes(asIs, asIs); err != nil {
		return isolation.Ready{}, err
	}
	go a.reap()
	a.quiet = initproc.NewQuiet()
	a.ready.Store(true)
	return isolation.Ready{PID: os.Getpid()}, nil
}

// reap waits for every child.
func (a *agent) reap() {
	runtime.LockOSThread()
	for {
		var s status
		a.table.forked.Arm()
		pid, err := syscall.Wait4(-1, &s.wait, 0, &s.usage)
		switch {
		case err == syscall.EINTR:
		case err != nil:
			a.table.forked.Wait()
		default:
			if c := a.table.reaped(pid, s); c != nil {
				a.finish(c, s)
			}
		}
	}
}

func (a *agent) launch(s ipc.Spawn, _ isolation.User, fds []int) outcome {
	out := outcome{master: -1}
	if s.PTY != nil {
		out.err = &ipc.Error{Kind: "bad_request", Message: "terminals are not available on this system"}
		return out
	}
	cwd := string(s.Cwd)
	if cwd == "" {
		cwd = a.setup.Workspace
	}
	if err := program.Enterable(cwd); err != nil {
		out.err = ipc.OSError("working directory "+strconv.Quote(cwd), cwd, err)
		return out
	}
	env := make([]string, 0, len(s.Env)+1)
	for _, e := range s.Env {
		env = append(env, string(e))
	}
	argv := make([]string, len(s.Argv))
	for i, v := range s.Argv {
		argv[i] = string(v)
	}
	path, errno := program.Lookup(argv[0], cwd, env)
	if errno != 0 {
		return cannot(argv[0], errno, errno != syscall.ENOENT)
	}
	attr := &syscall.ProcAttr{Dir: cwd, Env: env, Sys: &syscall.SysProcAttr{Setsid: true}}
	for _, fd := range fds {
		attr.Files = append(attr.Files, uintptr(fd))
	}
	c := &command{token: s.Token}
	a.table.expect(c)
	pid, err := syscall.ForkExec(path, argv, attr)
	if err != nil {
		a.table.abandoned(c)
		errno, _ := errnoOf(err)
		return cannot(argv[0], errno, true)
	}
	c.pid, c.start = pid, proc.BootTicks()
	out.command = c
	return out
}

func (k *killer) kill(what ipc.Kill) (ipc.Receipt, error) {
	return k.killGroups([]uint64{what.Token}, time.Duration(min(max(what.GraceS, 0), 3)*float64(time.Second))), nil
}

func (k *killer) killAll() ipc.Receipt {
	k.killing.Lock()
	defer k.killing.Unlock()
	k.table.mu.Lock()
	tokens := slices.Clone(k.table.old)
	k.table.mu.Unlock()
	return k.killGroups(tokens, 0)
}

// killGroups ends process groups, the one handle that there is here.
func (k *killer) killGroups(tokens []uint64, grace time.Duration) ipc.Receipt {
	began := time.Now()
	receipt := ipc.Receipt{Handles: []string{"process_group"}, Rounds: 1}
	for _, token := range tokens {
		c, ok := k.table.get(token)
		if !ok || syscall.Kill(-c.pid, 0) != nil {
			continue
		}
		receipt.Found++
		k.table.update(token, func(c *command) { c.killed = true })
		if grace > 0 {
			_ = syscall.Kill(-c.pid, syscall.SIGTERM)
			_ = syscall.Kill(-c.pid, syscall.SIGCONT)
			gone(c.pid, grace)
		}
		_ = syscall.Kill(-c.pid, syscall.SIGKILL)
		if gone(c.pid, 2*time.Second) {
			receipt.Killed++
		} else {
			receipt.Left++
		}
	}
	receipt.DurationS = time.Since(began).Seconds()
	return receipt
}

func gone(group int, within time.Duration) bool {
	for until := time.Now().Add(within); time.Now().Before(until); time.Sleep(2 * time.Millisecond) {
		if syscall.Kill(-group, 0) != nil {
			return true
		}
	}
	return false
}

// processes lists the leaders; there is no /proc to find others in.
func (k *killer) processes() ipc.Processes {
	k.table.mu.Lock()
	defer k.table.mu.Unlock()
	out := ipc.Processes{Processes: []ipc.Process{}}
	for pid, c := range k.table.byPID {
		out.Processes = append(out.Processes, ipc.Process{PID: pid, Argv: []ipc.Bytes{}, Token: c.token, State: "R"})
	}
	return out
}

// held is nothing: there is no /proc that shows open files.
func (k *killer) held() room.Use { return room.Use{} }

func maxRSS(u syscall.Rusage) int64 { return u.Maxrss }

// awaitShortly leaves it to the reaper.
func (a *agent) awaitShortly(*command, time.Duration) *ipc.Exit {
	a.table.wake()
	return nil
}
