//go:build darwin

package agent

import (
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"hermes-exec/runner/internal/initproc"
	"hermes-exec/runner/internal/ipc"
	"hermes-exec/runner/internal/isolation"
)

func (a *agent) begin() {}

// platform is what only some systems give an agent.
type platform struct {
	killing sync.Mutex // held while the whole slot is ended
}

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
	syscall.Umask(0o022)
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
		a.table.forked.arm()
		pid, err := syscall.Wait4(-1, &s.wait, 0, &s.usage)
		switch {
		case err == syscall.EINTR:
		case err != nil:
			a.table.forked.wait()
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
	if err := enterable(cwd); err != nil {
		out.err = osError("working directory "+strconv.Quote(cwd), cwd, err)
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
	path, errno := lookup(argv[0], cwd, env)
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
	c.pid, c.start = pid, isolation.BootTicks()
	out.command = c
	return out
}

func enterable(dir string) error {
	st, err := os.Stat(dir)
	if err != nil {
		return err
	}
	if !st.IsDir() {
		return syscall.ENOTDIR
	}
	return syscall.Access(dir, 1)
}

func lookup(name, cwd string, env []string) (string, syscall.Errno) {
	usable := func(path string) syscall.Errno {
		at := path
		if !strings.HasPrefix(at, "/") {
			at = cwd + "/" + at
		}
		st, err := os.Stat(at)
		if err != nil {
			errno, _ := errnoOf(err)
			return errno
		}
		if !st.Mode().IsRegular() || st.Mode().Perm()&0o111 == 0 {
			return syscall.EACCES
		}
		return 0
	}
	if strings.Contains(name, "/") {
		return name, usable(name)
	}
	for _, e := range env {
		if list, ok := strings.CutPrefix(e, "PATH="); ok {
			for _, dir := range strings.Split(list, ":") {
				if usable(dir+"/"+name) == 0 {
					return dir + "/" + name, 0
				}
			}
		}
	}
	return "", syscall.ENOENT
}

func (a *agent) kill(k ipc.Kill) (ipc.Receipt, error) {
	return a.killGroups([]uint64{k.Token}, time.Duration(min(max(k.GraceS, 0), 3)*float64(time.Second))), nil
}

func (a *agent) killAll() ipc.Receipt {
	a.killing.Lock()
	defer a.killing.Unlock()
	a.table.mu.Lock()
	tokens := slices.Clone(a.table.old)
	a.table.mu.Unlock()
	return a.killGroups(tokens, 0)
}

// killGroups ends process groups, the one handle that there is here.
func (a *agent) killGroups(tokens []uint64, grace time.Duration) ipc.Receipt {
	began := time.Now()
	receipt := ipc.Receipt{Handles: []string{"process_group"}, Rounds: 1}
	for _, token := range tokens {
		c, ok := a.table.get(token)
		if !ok || syscall.Kill(-c.pid, 0) != nil {
			continue
		}
		receipt.Found++
		a.table.update(token, func(c *command) { c.killed = true })
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
func (a *agent) processes() ipc.Processes {
	a.table.mu.Lock()
	defer a.table.mu.Unlock()
	out := ipc.Processes{Processes: []ipc.Process{}}
	for pid, c := range a.table.byPID {
		out.Processes = append(out.Processes, ipc.Process{PID: pid, Argv: []ipc.Bytes{}, Token: c.token, State: "R"})
	}
	return out
}

func maxRSS(u syscall.Rusage) int64 { return u.Maxrss }

func duplicate(fd int) (int, error) {
	n, err := syscall.Dup(fd)
	if err == nil {
		syscall.CloseOnExec(n)
	}
	return n, err
}

// awaitShortly leaves it to the reaper.
func (a *agent) awaitShortly(*command, time.Duration) *ipc.Exit {
	a.table.wake()
	return nil
}
