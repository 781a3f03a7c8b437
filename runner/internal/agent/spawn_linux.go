package agent

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"
	"unsafe"

	"hermes-exec/runner/internal/ipc"
	"hermes-exec/runner/internal/isolation"
)

const (
	oPath   = 0x200000
	fdcwd   = -100
	execute = 1

	marker = "HERMES_EXEC_REQUEST="
)

// launch runs on a spawner thread.
func (a *agent) launch(s ipc.Spawn, user isolation.User, fds []int) outcome {
	out := outcome{master: -1}
	if a.setup.Switch {
		if err := isolation.ThreadFS(user.UID, user.GID, user.Groups); err != nil {
			out.err = osError("become "+user.Name, "", err)
			return out
		}
	}
	cwd := string(s.Cwd)
	if cwd == "" {
		cwd = a.setup.Workspace
	}
	if err := enterable(cwd); err != nil {
		out.err = osError("working directory "+strconv.Quote(cwd), cwd, err)
		return out
	}
	env := append(textStrings(s.Env), marker+strconv.FormatUint(s.Token, 10)+"."+a.setup.Boot+"."+a.setup.Slot)
	path, errno := lookup(string(s.Argv[0]), cwd, env)
	if errno != 0 {
		return cannot(string(s.Argv[0]), errno, errno != syscall.ENOENT)
	}
	attr := &syscall.ProcAttr{Dir: cwd, Env: env, Files: make([]uintptr, len(fds)), Sys: &syscall.SysProcAttr{Setsid: true}}
	for i, fd := range fds {
		attr.Files[i] = uintptr(fd)
	}
	if s.PTY != nil {
		master, slave, err := openPTY(*s.PTY)
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
	c := &command{token: s.Token, start: isolation.BootTicks()}
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

// enterable checks a working directory with the thread's rights: the final
// "/." needs search permission on the directory itself.
func enterable(dir string) error {
	fd, err := syscall.Open(strings.TrimSuffix(dir, "/")+"/.", oPath|syscall.O_DIRECTORY|syscall.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	return syscall.Close(fd)
}

// lookup finds a program as a shell would.
func lookup(name, cwd string, env []string) (string, syscall.Errno) {
	if strings.Contains(name, "/") {
		return name, executable(name, cwd)
	}
	search := ""
	for _, e := range env {
		if v, ok := strings.CutPrefix(e, "PATH="); ok {
			search = v
		}
	}
	result := syscall.ENOENT
	for _, dir := range strings.Split(search, ":") {
		if dir == "" {
			dir = "."
		}
		path := dir + "/" + name
		switch errno := executable(path, cwd); errno {
		case 0:
			return path, 0
		case syscall.EACCES:
			// A directory that may not be searched hides its programs: it is passed over.
			if !errors.Is(isolation.Accessible(fdcwd, absolute(dir, cwd), execute), syscall.EACCES) {
				result = errno
			}
		}
	}
	return "", result
}

func absolute(path, cwd string) string {
	if strings.HasPrefix(path, "/") {
		return path
	}
	return cwd + "/" + path
}

// executable checks path, relative to cwd, with the thread's rights.
func executable(path, cwd string) syscall.Errno {
	path = absolute(path, cwd)
	var st syscall.Stat_t
	if err := syscall.Stat(path, &st); err != nil {
		errno, _ := errnoOf(err)
		if errno == syscall.ENOTDIR {
			return syscall.ENOENT
		}
		return errno
	}
	if st.Mode&syscall.S_IFMT != syscall.S_IFREG {
		return syscall.EACCES
	}
	if err := isolation.Accessible(fdcwd, path, execute); err != nil && err != syscall.ENOSYS {
		errno, _ := errnoOf(err)
		return errno
	}
	return 0
}

func (t *tenancy) trackingGID(token uint64) (uint32, bool) {
	track := t.setup.Track
	if track.Count == 0 {
		return 0, false
	}
	return track.First + uint32(token%uint64(track.Count)), true
}

func maxRSS(u syscall.Rusage) int64 { return u.Maxrss << 10 }

func duplicate(fd int) (int, error) {
	n, _, errno := syscall.Syscall(syscall.SYS_FCNTL, uintptr(fd), syscall.F_DUPFD_CLOEXEC, 0)
	if errno != 0 {
		return -1, errno
	}
	return int(n), nil
}

func textStrings(list []ipc.Bytes) []string {
	out := make([]string, len(list), len(list)+1)
	for i, b := range list {
		out[i] = string(b)
	}
	return out
}

// openPTY opens a terminal on the calling thread, whose user it will belong to.
func openPTY(size ipc.PTY) (master, slave int, err error) {
	master, err = syscall.Open("/dev/ptmx", syscall.O_RDWR|syscall.O_NOCTTY|syscall.O_CLOEXEC, 0)
	if err != nil {
		return -1, -1, &os.PathError{Op: "open", Path: "/dev/ptmx", Err: err}
	}
	fail := func(err error) (int, int, error) {
		_ = syscall.Close(master)
		return -1, -1, err
	}
	unlock := int32(0)
	if errno := ioctl(master, syscall.TIOCSPTLCK, uintptr(unsafe.Pointer(&unlock))); errno != 0 {
		return fail(errno)
	}
	peer, err := openPeer(master)
	if err != nil {
		return fail(err)
	}
	window := [4]uint16{size.Rows, size.Cols}
	if errno := ioctl(master, syscall.TIOCSWINSZ, uintptr(unsafe.Pointer(&window))); errno != 0 {
		_ = syscall.Close(peer)
		return fail(errno)
	}
	return master, peer, nil
}

// noTerminal tells terminals that are used up, on this host, from a box
// without any.
func noTerminal(err error) error {
	switch errno, _ := errnoOf(err); errno {
	case syscall.ENOSPC, syscall.ENOMEM, syscall.EMFILE, syscall.ENFILE:
		return exhausted("no terminal can be had", err)
	}
	return osError("terminal", "", err)
}

// openPeer opens the other end of a terminal: of this very one where the
// kernel can (not gVisor), else by its name.
func openPeer(master int) (int, error) {
	const tiocGPTPeer = 0x5441
	const flags = syscall.O_RDWR | syscall.O_NOCTTY | syscall.O_CLOEXEC
	peer, _, errno := syscall.Syscall(syscall.SYS_IOCTL, uintptr(master), tiocGPTPeer, flags)
	if errno != syscall.ENOTTY && errno != syscall.EINVAL {
		if errno != 0 {
			return -1, errno
		}
		return int(peer), nil
	}
	number := uint32(0)
	if errno := ioctl(master, syscall.TIOCGPTN, uintptr(unsafe.Pointer(&number))); errno != 0 {
		return -1, errno
	}
	return syscall.Open(fmt.Sprintf("/dev/pts/%d", number), flags, 0)
}

func ioctl(fd int, request, arg uintptr) syscall.Errno {
	_, _, errno := syscall.Syscall(syscall.SYS_IOCTL, uintptr(fd), request, arg)
	return errno
}
