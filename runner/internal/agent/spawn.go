package agent

import (
	"errors"
	"fmt"
	"strings"
	"syscall"
	"time"

	"hermes-exec/runner/internal/accounts"
	"hermes-exec/runner/internal/children"
	"hermes-exec/runner/internal/ipc"
	"hermes-exec/runner/internal/pipe"
)

// spawnReply is the reply to OpSpawn. The command's exit is sent after it.
type spawnReply struct {
	ipc.SpawnResult
	table   *children.Table
	command *children.Command
}

// AfterReply releases the exit event.
func (s spawnReply) AfterReply() {
	if s.command != nil {
		s.table.ConfirmReply(s.command)
	}
}

// launch describes a command that can be started.
type launch struct {
	token      uint64
	argv       []string
	path       string
	cwd        string
	user       accounts.User
	attr       *syscall.ProcAttr
	master     int   // of its terminal, -1 without a terminal
	closeAfter []int // descriptors to close after the start
}

// failure is the reason why nothing was started: an exit code with its reason, which are a result,
// or an error.
type failure struct {
	code   int
	reason string
	err    error
}

// spawn runs on a thread that is prepared for starting commands.
func (a *agent) spawn(m *ipc.Message) (any, []int, error) {
	var s ipc.Spawn
	if err := ipc.Decode(m.Body, &s); err != nil {
		return nil, nil, badRequest(err)
	}
	if len(s.Argv) == 0 || s.Argv[0] == "" {
		return nil, nil, badRequest(errors.New("argv is empty"))
	}
	if s.PTY == nil && len(m.FDs) < 3 {
		return nil, nil, badRequest(fmt.Errorf("%d descriptors for a command", len(m.FDs)))
	}
	user, err := a.userFor(s.User)
	if err != nil {
		return nil, nil, err
	}
	if _, exists := a.table.Get(s.Token); exists {
		return nil, nil, badRequest(fmt.Errorf("token %d was used before", s.Token))
	}
	// The command may already have ended when a fork returns.
	began := time.Now()
	command, master, failed := a.start(s, user, m.FDs)
	m.CloseFDs() // the command has its own copies now
	if failed != nil && failed.err != nil {
		return nil, nil, failed.err
	}
	if failed != nil {
		return spawnReply{SpawnResult: ipc.SpawnResult{ExitCode: failed.code, Reason: failed.reason}}, nil, nil
	}
	result := spawnReply{SpawnResult: ipc.SpawnResult{Started: true, PID: command.PID}, table: a.table,
		command: command}
	if s.HoldMS > 0 {
		result.Exit = a.table.AwaitShortly(command, time.Duration(s.HoldMS)*time.Millisecond)
	}
	result.RanS = time.Since(began).Seconds()
	if master >= 0 {
		return result, []int{master}, nil
	}
	return result, nil, nil
}

// start forks a command and enters it in the table.
func (a *agent) start(s ipc.Spawn, user accounts.User, fds []int) (*children.Command, int, *failure) {
	a.closing.RLock()
	defer a.closing.RUnlock()
	if a.stopping {
		return nil, -1, &failure{err: &ipc.Error{Kind: "slot_closed", Message: "the slot is being reset"}}
	}
	l, failed := a.describe(s, user, fds)
	defer func() { pipe.CloseFDs(l.closeAfter) }()
	if failed != nil {
		return nil, -1, failed
	}
	command, failed := a.fork(&l)
	if failed != nil {
		if l.master >= 0 {
			_ = syscall.Close(l.master)
		}
		return nil, -1, failed
	}
	a.table.Enter(command)
	if s.HoldMS == 0 {
		a.table.Wake()
	}
	return command, l.master, nil
}

// newProgramFailure returns the failure of a program that is missing or cannot be executed, with
// the exit codes that shells use.
func newProgramFailure(program string, errno syscall.Errno, exists bool) *failure {
	out := &failure{code: 126}
	switch {
	case !exists && errno == syscall.ENOENT, !exists && errno == syscall.ENOTDIR:
		out.code = 127
		out.reason = program + ": command not found"
	case errno == syscall.ENOENT:
		out.reason = program + ": bad interpreter: the interpreter or loader that it names is missing"
	case errno == syscall.ENOEXEC:
		out.reason = program + ": cannot execute: neither a binary of this system nor a script that names its " +
			"interpreter"
	case errno == syscall.E2BIG:
		out.reason = program + ": argument list too long"
	default:
		out.reason = program + ": " + errno.Error()
	}
	return out
}

// userFor returns the user that a command or file operation runs as. Only a tenant that has the image to itself may
// choose.
//
// Its groups and home are those that the image's files name now, except that the slot's own user keeps the slot's home:
// the image may set another HOME.
func (a *agent) userFor(name string) (accounts.User, error) {
	own := a.user
	isOwn := name == own.Name || name == fmt.Sprint(own.UID)
	if name == "" || isOwn && !(a.setup.AsImage() && a.setup.Switch) {
		return own, nil
	}
	if !a.setup.AsImage() {
		const only = "this slot works as %s; user %q is available only if the slot is a whole sandbox or has a " +
			"root of its own"
		return own, &ipc.Error{Kind: "user", Message: fmt.Sprintf(only, own.Name, name)}
	}
	user, err := accounts.LookupUser(name)
	switch {
	case err != nil && isOwn:
		return own, nil // the image has no passwd file
	case err != nil:
		return own, &ipc.Error{Kind: "user", Message: err.Error()}
	case user.Name == own.Name && user.UID == own.UID:
		user.Home = own.Home
	}
	if !a.setup.Switch && (user.UID != own.UID || user.GID != own.GID) {
		return own, &ipc.Error{Kind: "user",
			Message: fmt.Sprintf("the runner is uid %d and cannot become %q", own.UID, name)}
	}
	return user, nil
}

// environment returns the variables of a command: those of the slot that describe its user describe another one
// instead.
func (a *agent) environment(s ipc.Spawn, user accounts.User) []string {
	env := textStrings(s.Env)
	if user.Name == a.user.Name {
		return env
	}
	facts := map[string]string{"HOME": user.Home, "USER": user.Name, "LOGNAME": user.Name}
	for i := range env[:min(s.Base, len(env))] {
		name, _, _ := strings.Cut(env[i], "=")
		if value, ok := facts[name]; ok {
			env[i] = name + "=" + value
		}
	}
	return env
}

func errnoOf(err error) (syscall.Errno, bool) {
	var errno syscall.Errno
	ok := errors.As(err, &errno)
	return errno, ok
}

func textStrings(list []ipc.Bytes) []string {
	out := make([]string, len(list))
	for i, b := range list {
		out[i] = string(b)
	}
	return out
}
