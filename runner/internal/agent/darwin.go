//go:build darwin

package agent

import (
	"os"
	"strconv"
	"syscall"

	"hermes-exec/runner/internal/accounts"
	"hermes-exec/runner/internal/children"
	"hermes-exec/runner/internal/initproc"
	"hermes-exec/runner/internal/ipc"
	"hermes-exec/runner/internal/isolation"
	"hermes-exec/runner/internal/program"
	"hermes-exec/runner/internal/tenants"
)

// platform holds the state of an agent that exists on some systems only.
type platform struct{}

func (platform) begin() {}

func (a *agent) prepare(s isolation.Setup) (isolation.Ready, error) {
	if a.ready.Load() {
		return isolation.Ready{}, &ipc.Error{Kind: "internal", Message: "the agent is set up already"}
	}
	a.setup = s
	a.user = accounts.User{Name: s.UserName, UID: s.UID, GID: s.GID, Home: s.Home}
	a.tenants = tenants.New(a.table)
	asIs := func() error { return nil }
	if err := a.startLanes(asIs, asIs); err != nil {
		return isolation.Ready{}, err
	}
	go a.table.Reap()
	a.trimmer = initproc.NewIdleTrimmer()
	a.ready.Store(true)
	openLanes(a.gates[:a.setup.SpawnLanes], a.gates[a.setup.SpawnLanes:])
	return isolation.Ready{PID: os.Getpid()}, nil
}

// become changes nothing: all users of a slot are the same here.
func become(isolation.Setup, accounts.User) (back func(), err error) { return func() {}, nil }

func (a *agent) describe(s ipc.Spawn, user accounts.User, fds []int) (l launch, failed *failure) {
	l = launch{token: s.Token, argv: textStrings(s.Argv), user: user, cwd: string(s.Cwd), master: -1}
	if s.PTY != nil {
		return l, &failure{err: &ipc.Error{Kind: "bad_request", Message: "terminals are not available on this system"}}
	}
	if l.cwd == "" {
		l.cwd = a.setup.Workspace
	}
	if err := program.CheckDirectory(l.cwd); err != nil {
		return l, &failure{err: ipc.OSError("working directory "+strconv.Quote(l.cwd), l.cwd, err)}
	}
	env := a.environment(s, user)
	path, errno := program.Lookup(l.argv[0], l.cwd, env)
	if errno != 0 {
		return l, newProgramFailure(l.argv[0], errno, errno != syscall.ENOENT)
	}
	l.path, l.attr = path, &syscall.ProcAttr{Dir: l.cwd, Env: env, Sys: &syscall.SysProcAttr{Setsid: true}}
	for _, fd := range fds {
		l.attr.Files = append(l.attr.Files, uintptr(fd))
	}
	return l, nil
}

func (a *agent) fork(l *launch) (*children.Command, *failure) {
	c := a.table.Begin(l.token)
	a.table.Expect(c)
	pid, err := syscall.ForkExec(l.path, l.argv, l.attr)
	if err != nil {
		a.table.Abandon(c)
		errno, _ := errnoOf(err)
		return nil, newProgramFailure(l.argv[0], errno, true)
	}
	c.PID = pid
	return c, nil
}
