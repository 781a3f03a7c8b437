package agent

import (
	"strconv"
	"syscall"
	"time"

	"hermes-exec/runner/internal/ipc"
	"hermes-exec/runner/internal/isolation"
	"hermes-exec/runner/internal/pipe"
	"hermes-exec/runner/internal/proc"
	"hermes-exec/runner/internal/program"
	"hermes-exec/runner/internal/rights"
)

const marker = ipc.RequestVariable + "="

// launch runs on a spawner thread.
func (a *agent) launch(s ipc.Spawn, user isolation.User, fds []int) outcome {
	out := outcome{master: -1}
	if a.setup.Switch {
		if err := rights.ThreadFS(user.UID, user.GID, user.Groups); err != nil {
			out.err = ipc.OSError("become "+user.Name, "", err)
			return out
		}
	}
	cwd := string(s.Cwd)
	if cwd == "" {
		cwd = a.setup.Workspace
	}
	dir := cwd
	if a.setup.OwnRoot() {
		// Links of /proc to what this process has open lead out of the slot.
		fd, err := program.OpenDir(cwd)
		if err != nil {
			out.err = ipc.OSError("working directory "+strconv.Quote(cwd), cwd, err)
			return out
		}
		defer syscall.Close(fd)
		dir = pipe.FDPath(fd)
	} else if err := program.Enterable(cwd); err != nil {
		out.err = ipc.OSError("working directory "+strconv.Quote(cwd), cwd, err)
		return out
	}
	mark := marker + strconv.FormatUint(s.Token, 10) + "." + a.setup.Boot + "." + a.setup.Slot
	env := append([]string{mark}, textStrings(s.Env)...) // first, where it is found however much follows
	path, errno := program.Lookup(string(s.Argv[0]), cwd, env)
	if errno != 0 {
		return cannot(string(s.Argv[0]), errno, errno != syscall.ENOENT)
	}
	attr := &syscall.ProcAttr{Dir: dir, Env: env, Files: make([]uintptr, len(fds)),
		Sys: &syscall.SysProcAttr{Setsid: true}}
	for i, fd := range fds {
		attr.Files[i] = uintptr(fd)
	}
	if s.PTY != nil {
		master, slave, err := pipe.OpenTerminal(s.PTY.Rows, s.PTY.Cols)
		if err != nil {
			out.err = noTerminal(err)
			return out
		}
		defer syscall.Close(slave)
		out.master = master
		attr.Files = append([]uintptr{uintptr(slave), uintptr(slave), uintptr(slave)}, attr.Files...)
		attr.Sys.Setctty, attr.Sys.Ctty = true, 0
	}
	if a.setup.Switch {
		attr.Sys.Credential = &syscall.Credential{Uid: user.UID, Gid: user.GID, Groups: user.Groups}
		if gid, ok := a.trackingGID(s.Token); ok {
			attr.Sys.Credential.Groups = append(append([]uint32{}, user.Groups...), gid)
		}
	}
	if a.groupFD != nil {
		attr.Sys.UseCgroupFD, attr.Sys.CgroupFD = true, int(a.groupFD.Fd())
	}
	c, why := a.fork(path, s, attr, user)
	if c == nil {
		if out.master >= 0 {
			_ = syscall.Close(out.master)
		}
		return a.refused(s, cwd, why)
	}
	out.command = c
	return out
}

func (a *agent) fork(path string, s ipc.Spawn, attr *syscall.ProcAttr, user isolation.User) (*command, refusal) {
	c := &command{token: s.Token, start: proc.BootTicks()}
	c.losses = a.losses.Mark()
	start := func() (int, error) {
		a.table.expect(c)
		return a.score.Fork(func() (int, error) { return a.forkExec(c, path, textStrings(s.Argv), attr, user) })
	}
	pid, err := start()
	for wait := time.Millisecond; err == syscall.ETXTBSY && wait < 100*time.Millisecond; wait *= 2 {
		// Another fork of ours holds a just written program open until its exec.
		time.Sleep(wait)
		pid, err = start()
	}
	if err != nil {
		var why refusal
		if pid, why = a.retry(start, err); pid == 0 {
			a.table.abandoned(c)
			return nil, why
		}
	}
	c.pid = pid
	return c, refusal{}
}

func (t *tenancy) trackingGID(token uint64) (uint32, bool) {
	track := t.setup.Track
	if track.Count == 0 {
		return 0, false
	}
	return track.First + uint32(token%uint64(track.Count)), true
}

func maxRSS(u syscall.Rusage) int64 { return u.Maxrss << 10 }

func textStrings(list []ipc.Bytes) []string {
	out := make([]string, len(list))
	for i, b := range list {
		out[i] = string(b)
	}
	return out
}

// noTerminal distinguishes a host whose terminals are used up from a box
// without any.
func noTerminal(err error) error {
	switch errno, _ := errnoOf(err); errno {
	case syscall.ENOSPC, syscall.ENOMEM, syscall.EMFILE, syscall.ENFILE:
		return exhausted("no terminal can be had", err)
	}
	return ipc.OSError("terminal", "", err)
}
