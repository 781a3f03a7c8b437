package isolation

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"
	"syscall"

	"hermes-exec/runner/internal/bounded"
	"hermes-exec/runner/internal/ipc"
	"hermes-exec/runner/internal/limits"
	"hermes-exec/runner/internal/rights"
)

// EnterArg makes `runner agent EnterArg NETWORK ARGS…` start `runner ARGS…` in namespaces of its
// own for Start, and exit.
const EnterArg = "--enter"

// Start starts this program with argv in new namespaces. A user namespace in which every id keeps
// its number belongs to owner, for whom the kernel then counts its resources. extra becomes
// descriptor 3. The caller must not be on the first thread, and waits for the process.
func Start(method Method, network bool, owner uint32, argv []string, std [3]*os.File, extra *os.File) (p *os.Process,
	err error) {
	files := []*os.File{std[0], std[1], std[2], extra}
	if method == MethodSelf {
		return startSelf(network, argv, files)
	}
	start := func() error {
		p, err = os.StartProcess(SelfExe, argv, &os.ProcAttr{Dir: "/", Env: []string{}, Files: files,
			Sys: attributes(method, network)})
		return err
	}
	if method != MethodIdentity {
		return p, start()
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	err = limits.WithCounters(func() error { return rights.AsOwner(owner, start) })
	return p, err
}

// startSelf uses an intermediate process: an undumpable process that is not root cannot write the
// uid map of its child, but a process is dumpable right after its exec. The process that it starts
// is a child of the runner.
func startSelf(network bool, argv []string, files []*os.File) (*os.Process, error) {
	r, w, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer r.Close()
	args := append([]string{"runner", "agent", EnterArg, strconv.FormatBool(network)}, argv[1:]...)
	attr := &os.ProcAttr{Dir: "/", Env: []string{}, Files: append(files, w), Sys: &syscall.SysProcAttr{Setsid: true}}
	between, err := os.StartProcess(SelfExe, args, attr)
	w.Close()
	if err != nil {
		return nil, err
	}
	answer, _, _ := bounded.Read(r, 4096)
	state, err := between.Wait()
	if err != nil {
		return nil, err
	}
	pid, err := strconv.Atoi(string(answer))
	if err != nil {
		err = errors.New("clone: " + string(answer))
		if len(answer) == 0 {
			err = fmt.Errorf("clone: no process was made (%v)", state)
		}
		if code := state.ExitCode(); wasKilled(state) || code == shortageCode || code == crashCode {
			err = fmt.Errorf("%w: %w", err, ipc.ErrShortage)
		}
		return nil, err
	}
	return os.FindProcess(pid)
}

// Enter is the main function of the intermediate process. It writes the pid of the process that it
// started, or the error, to descriptor 4.
func Enter(args []string) int {
	out := os.NewFile(4, "answer")
	syscall.CloseOnExec(4)
	attr := attributes(MethodSelf, args[0] == "true")
	attr.Cloneflags |= syscall.CLONE_PARENT
	argv := append([]string{"runner"}, args[1:]...)
	pid, err := syscall.ForkExec(SelfExe, argv, &syscall.ProcAttr{Dir: "/", Files: []uintptr{0, 1, 2, 3}, Sys: attr})
	if err != nil {
		fmt.Fprint(out, err.Error())
		if ipc.IsShortage(cloneError(err)) {
			return shortageCode
		}
		return 1
	}
	fmt.Fprint(out, pid)
	return 0
}

// attributes returns the attributes for the start of an agent.
func attributes(method Method, network bool) *syscall.SysProcAttr {
	a := &syscall.SysProcAttr{Setsid: true}
	if method == MethodNone || method == MethodBwrap {
		return a
	}
	a.Pdeathsig = syscall.SIGKILL
	a.Cloneflags = syscall.CLONE_NEWNS | syscall.CLONE_NEWPID | syscall.CLONE_NEWIPC | syscall.CLONE_NEWUTS
	if !network {
		a.Cloneflags |= syscall.CLONE_NEWNET
	}
	switch method {
	case MethodIdentity:
		a.Cloneflags |= syscall.CLONE_NEWUSER
		a.UidMappings, a.GidMappings = identityMap("uid_map"), identityMap("gid_map")
		setgroups, _ := bounded.ReadWhole("/proc/self/setgroups", bounded.SettingSize)
		a.GidMappingsEnableSetgroups = strings.TrimSpace(string(setgroups)) != "deny"
		a.Credential = &syscall.Credential{NoSetGroups: true} // root, and not the owner
	case MethodSelf:
		a.Cloneflags |= syscall.CLONE_NEWUSER
		a.UidMappings = []syscall.SysProcIDMap{{ContainerID: os.Geteuid(), HostID: os.Geteuid(), Size: 1}}
		a.GidMappings = []syscall.SysProcIDMap{{ContainerID: os.Getegid(), HostID: os.Getegid(), Size: 1}}
		a.AmbientCaps = []uintptr{rights.CapSysAdmin, rights.CapNetAdmin, rights.CapSysChroot, rights.CapSetpcap,
			rights.CapDacOverride, rights.CapSysResource}
	}
	return a
}

// identityMap maps every id that exists here to itself.
func identityMap(file string) []syscall.SysProcIDMap {
	data, err := bounded.ReadWhole("/proc/self/"+file, bounded.SettingSize)
	if err != nil {
		return nil
	}
	var out []syscall.SysProcIDMap
	for _, line := range strings.Split(string(data), "\n") {
		f := strings.Fields(line)
		if len(f) != 3 {
			continue
		}
		first, err1 := strconv.Atoi(f[0])
		size, err2 := strconv.Atoi(f[2])
		if err1 == nil && err2 == nil {
			out = append(out, syscall.SysProcIDMap{ContainerID: first, HostID: first, Size: size})
		}
	}
	return out
}
