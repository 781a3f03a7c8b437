package agent

import (
	"errors"
	"fmt"
	"syscall"
	"time"

	"hermes-exec/runner/internal/ipc"
	"hermes-exec/runner/internal/isolation"
)

// spawned is the reply to OpSpawn; the command's exit is sent after it.
type spawned struct {
	ipc.Spawned
	a *agent
	c *command
}

// Replied releases the exit event.
func (s spawned) Replied() {
	if s.c != nil {
		s.a.repliedTo(s.c)
	}
}

// spawn runs on a thread that is prepared for it.
func (a *agent) spawn(s ipc.Spawn, m *ipc.Message) (any, []int, error) {
	if len(s.Argv) == 0 || s.Argv[0] == "" {
		return nil, nil, &ipc.Error{Kind: "bad_request", Message: "argv is empty"}
	}
	if s.PTY == nil && len(m.FDs) < 3 {
		return nil, nil, &ipc.Error{Kind: "bad_request",
			Message: fmt.Sprintf("%d descriptors for a command", len(m.FDs))}
	}
	user, err := a.userFor(s.User)
	if err != nil {
		return nil, nil, err
	}
	if _, known := a.table.get(s.Token); known {
		return nil, nil, &ipc.Error{Kind: "bad_request", Message: fmt.Sprintf("token %d was used before", s.Token)}
	}
	// A fork may return when the command is over already.
	began := time.Now()
	out := a.start(s, user, m.FDs)
	m.CloseFDs() // the command has its own now
	if out.err != nil {
		return nil, nil, out.err
	}
	c := out.command
	result := spawned{Spawned: ipc.Spawned{Started: c != nil, ExitCode: out.code, Reason: out.reason}, a: a, c: c}
	if c == nil {
		return result, nil, nil
	}
	result.PID = c.pid
	if s.HoldMS > 0 {
		result.Exit = a.awaitShortly(c, time.Duration(s.HoldMS)*time.Millisecond)
	}
	result.RanS = time.Since(began).Seconds()
	if out.master >= 0 {
		return result, []int{out.master}, nil
	}
	return result, nil, nil
}

// start launches a command and enters it in the table.
func (a *agent) start(s ipc.Spawn, user isolation.User, fds []int) outcome {
	a.closing.RLock()
	defer a.closing.RUnlock()
	if a.stopping {
		return outcome{err: &ipc.Error{Kind: "slot_closed", Message: "the slot is being reset"}}
	}
	out := a.launch(s, user, fds)
	if out.command == nil {
		return out
	}
	if end := a.table.entered(out.command); end != nil {
		a.finish(out.command, *end)
	}
	if s.HoldMS == 0 {
		a.table.wake()
	}
	return out
}

// outcome of a launch: a command, or an exit code with its reason, or an error.
type outcome struct {
	command *command
	master  int
	code    int
	reason  string
	err     error
}

// cannot is the outcome for a program that is missing or cannot be executed,
// with the exit codes that shells use.
func cannot(program string, errno syscall.Errno, found bool) outcome {
	out := outcome{master: -1, code: 126}
	switch {
	case !found && errno == syscall.ENOENT, !found && errno == syscall.ENOTDIR:
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

// userFor is who a command runs as. Only a tenant that has the image to itself
// may choose.
func (t *tenancy) userFor(name string) (isolation.User, error) {
	own := t.slotUser
	if name == "" || name == own.Name || name == fmt.Sprint(own.UID) {
		return own, nil
	}
	if !t.setup.AsImage() {
		const only = "commands of this slot run as %s; user %q can be had only where the slot is a whole box or has " +
			"a root of its own"
		return own, &ipc.Error{Kind: "user", Message: fmt.Sprintf(only, own.Name, name)}
	}
	user, err := isolation.LookupUser(name)
	if err != nil {
		return own, &ipc.Error{Kind: "user", Message: err.Error()}
	}
	if !t.setup.Switch && (user.UID != own.UID || user.GID != own.GID) {
		return own, &ipc.Error{Kind: "user",
			Message: fmt.Sprintf("the runner is uid %d and cannot become %q", own.UID, name)}
	}
	return user, nil
}

func errnoOf(err error) (syscall.Errno, bool) {
	var errno syscall.Errno
	ok := errors.As(err, &errno)
	return errno, ok
}
