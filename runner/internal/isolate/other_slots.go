//go:build !linux

package isolate

import (
	"syscall"

	"hermes-exec/runner/internal/link"
)

// Attr are the attributes with which an agent is started.
func Attr(Way, bool) *syscall.SysProcAttr { return &syscall.SysProcAttr{Setsid: true} }

// MakeGroups holds no limit here.
func MakeGroups(Facts, string, link.Limits) ([]Join, map[string]string, error) {
	return nil, map[string]string{}, nil
}

// RemoveGroups has nothing to remove here.
func RemoveGroups([]Join) error { return nil }
