package slots

import (
	"os"
	"runtime"
	"sync"

	"hermes-exec/runner/internal/isolate"
)

const rlimitsWork = true

// program is what to run as the slot's agent.
func (s *slot) program() (path string, argv []string) {
	if s.way != isolate.WayBwrap {
		return isolate.SelfExe, []string{"runner", "agent"}
	}
	exe := s.m.exe
	if real, err := os.Readlink(isolate.SelfExe); err == nil {
		exe = real
	}
	return s.m.facts.BwrapPath, s.setup.View.BwrapArgs(exe, []string{"agent"})
}

type starting struct {
	path string
	argv []string
	attr *os.ProcAttr
	done chan started
}

type started struct {
	process *os.Process
	err     error
}

var (
	starter   = make(chan starting)
	startOnce sync.Once
)

// serveStarts keeps one thread for starting agents: they are to die with the
// thread that made them, and this one lives as long as the program.
func serveStarts() {
	runtime.LockOSThread()
	for s := range starter {
		p, err := os.StartProcess(s.path, s.argv, s.attr)
		s.done <- started{p, err}
	}
}

func startProcess(path string, argv []string, attr *os.ProcAttr) (*os.Process, error) {
	startOnce.Do(func() { go serveStarts() })
	done := make(chan started)
	starter <- starting{path, argv, attr, done}
	r := <-done
	return r.process, r.err
}
