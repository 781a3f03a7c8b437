package link

import (
	"encoding/json"
	"fmt"
	"os"
	"runtime"
	"sync"
	"syscall"

	"hermes-exec/runner/internal/cgroup"
	"hermes-exec/runner/internal/isolation"
	"hermes-exec/runner/internal/limits"
)

// begin starts the slot's agent with theirs as its end of the link.
func (p Config) begin(null, theirs *os.File) (*os.Process, error) {
	std := [3]*os.File{null, null, os.Stderr}
	argv := []string{"runner", "agent"}
	domain := p.Domain
	if p.Setup.Successor {
		domain.Scoped = false // it has to signal the processes that the dead agent left
	}
	if domain.Scoped || domain.Files != nil {
		encoded, err := json.Marshal(domain)
		if err != nil {
			return nil, err
		}
		argv = append(argv, isolation.ScopeArg, string(encoded))
	}
	if p.Method != isolation.MethodBwrap {
		return isolation.Start(p.Method, p.Setup.View.Network, p.Setup.CountingUID, argv, std, theirs)
	}
	exe := p.Exe
	if real, err := os.Readlink(isolation.SelfExe); err == nil {
		exe = real
	}
	if err := p.Setup.View.PrepareBwrap(); err != nil {
		return nil, err
	}
	attr := &os.ProcAttr{Dir: "/", Env: []string{}, Files: []*os.File{null, null, os.Stderr, theirs},
		Sys: &syscall.SysProcAttr{Setsid: true, Pdeathsig: syscall.SIGKILL}}
	return os.StartProcess(p.Bwrap, p.Setup.View.BwrapArgs(exe, argv[1:]), attr)
}

var sandboxOOM = sync.OnceValue(cgroup.SandboxOOMFile)

// oomKills returns how many processes the sandbox has lost for lack of memory.
func oomKills() int64 {
	count, _ := cgroup.ReadOOM(sandboxOOM())
	return count
}

func isSandboxFull() bool { return cgroup.IsSandboxFull() }

// processLimit names the limit on processes and threads that may have caused a failure of this kind.
func processLimit(kind string) string {
	if kind != "exhausted" {
		return ""
	}
	if isSandboxFull() {
		return "; the sandbox has as many processes as its cgroup allows (pids.max): raise its limit of pids"
	}
	most, limited := limits.MaxProcesses()
	if os.Geteuid() == 0 || !limited {
		return ""
	}
	return fmt.Sprintf("; this user may have %d processes and threads (ulimit -u): raise this limit", most)
}

type startRequest struct {
	do   func() (*os.Process, error)
	done chan startResult
}

type startResult struct {
	process *os.Process
	err     error
}

var (
	starter   = make(chan startRequest)
	startOnce sync.Once
)

// serveStarts keeps one thread for starting agents: they die with the thread that made them, and
// this one lives as long as the program.
func serveStarts() {
	runtime.LockOSThread()
	for s := range starter {
		p, err := s.do()
		s.done <- startResult{p, err}
	}
}

// onStarter runs do on that thread.
func onStarter(do func() (*os.Process, error)) (*os.Process, error) {
	startOnce.Do(func() { go serveStarts() })
	done := make(chan startResult)
	starter <- startRequest{do, done}
	r := <-done
	return r.process, r.err
}
