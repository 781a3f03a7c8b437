//go:build darwin

package slots

import "os"

const rlimitsWork = false

func (s *slot) program() (path string, argv []string) { return s.m.exe, []string{"runner", "agent"} }

func startProcess(path string, argv []string, attr *os.ProcAttr) (*os.Process, error) {
	return os.StartProcess(path, argv, attr)
}

func (s *slot) wipeShared() []string { return nil }
