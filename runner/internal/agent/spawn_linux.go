package agent

import (
	"fmt"
	"strconv"
	"syscall"

	"hermes-exec/runner/internal/accounts"
	"hermes-exec/runner/internal/ipc"
	"hermes-exec/runner/internal/isolation"
	"hermes-exec/runner/internal/pipe"
	"hermes-exec/runner/internal/program"
	"hermes-exec/runner/internal/rights"
	"hermes-exec/runner/internal/tenants"
)

// describe prepares the start of a command. It runs on a spawner thread and gives that thread the
// user's file rights. The caller closes closeAfter, also after a failure.
func (a *agent) describe(s ipc.Spawn, user accounts.User, fds []int) (l launch, failed *failure) {
	l = launch{token: s.Token, argv: textStrings(s.Argv), user: user, cwd: string(s.Cwd), master: -1}
	if a.setup.Switch {
		if err := rights.ThreadFS(user.UID, user.GID, user.Groups); err != nil {
			return l, &failure{err: ipc.OSError("become "+user.Name, "", err)}
		}
	}
	if l.cwd == "" {
		l.cwd = a.setup.Workspace
	}
	dir := l.cwd
	if a.setup.OwnRoot() {
		// Links of /proc to files that this process has open lead out of the slot.
		fd, err := program.OpenDir(l.cwd)
		if err != nil {
			return l, newDirectoryFailure(l.cwd, err)
		}
		l.closeAfter = append(l.closeAfter, fd)
		dir = pipe.FDPath(fd)
	} else if err := program.CheckDirectory(l.cwd); err != nil {
		return l, newDirectoryFailure(l.cwd, err)
	}
	mark := tenants.Mark(s.Token, a.setup)
	// First, so that it is found however large the environment is.
	env := append([]string{mark}, a.environment(s, user)...)
	path, errno := program.Lookup(l.argv[0], l.cwd, env)
	if errno != 0 {
		return l, newProgramFailure(l.argv[0], errno, errno != syscall.ENOENT)
	}
	attr := &syscall.ProcAttr{Dir: dir, Env: env, Files: make([]uintptr, len(fds)),
		Sys: &syscall.SysProcAttr{Setsid: true}}
	for i, fd := range fds {
		attr.Files[i] = uintptr(fd)
	}
	if s.PTY != nil {
		master, slave, err := pipe.OpenTerminal(s.PTY.Rows, s.PTY.Cols)
		if err != nil {
			return l, &failure{err: terminalError(err)}
		}
		l.master, l.closeAfter = master, append(l.closeAfter, slave)
		attr.Files = append([]uintptr{uintptr(slave), uintptr(slave), uintptr(slave)}, attr.Files...)
		attr.Sys.Setctty, attr.Sys.Ctty = true, 0
	}
	if a.setup.Switch {
		attr.Sys.Credential = &syscall.Credential{Uid: user.UID, Gid: user.GID, Groups: user.Groups}
		if gid, ok := trackingGID(a.setup.Track, s.Token); ok {
			attr.Sys.Credential.Groups = append(append([]uint32{}, user.Groups...), gid)
		}
	}
	if a.groupFD != nil {
		attr.Sys.UseCgroupFD, attr.Sys.CgroupFD = true, int(a.groupFD.Fd())
	}
	l.path, l.attr = path, attr
	return l, nil
}

// become gives the calling thread the file rights of a user of the slot until back is called.
func become(s isolation.Setup, user accounts.User) (back func(), err error) {
	if !s.Switch {
		return func() {}, nil
	}
	back = func() {
		if err := rights.ThreadFS(s.UID, s.GID, s.Groups); err != nil {
			// A thread that cannot switch back must not serve anybody else.
			panic(fmt.Sprintf("file rights back: %v", err))
		}
	}
	if err := rights.ThreadFS(user.UID, user.GID, user.Groups); err != nil {
		back()
		return nil, ipc.OSError("become "+user.Name, "", err)
	}
	return back, nil
}

func newDirectoryFailure(cwd string, err error) *failure {
	return &failure{err: ipc.OSError("working directory "+strconv.Quote(cwd), cwd, err)}
}

func trackingGID(track isolation.IDRange, token uint64) (uint32, bool) {
	if track.Count == 0 {
		return 0, false
	}
	return track.First + uint32(token%uint64(track.Count)), true
}

// terminalError distinguishes a host that has run out of terminals from a sandbox without
// terminals.
func terminalError(err error) error {
	switch errno, _ := errnoOf(err); errno {
	case syscall.ENOSPC, syscall.ENOMEM, syscall.EMFILE, syscall.ENFILE:
		return newExhaustedError("no terminal is available", err)
	}
	return ipc.OSError("terminal", "", err)
}
