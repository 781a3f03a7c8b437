//go:build !linux

package isolation

import (
	"errors"
	"os"
)

// Probe on a system other than Linux: slots share everything, and only process
// groups keep commands apart.
func Probe() (Facts, error) {
	const why = "only on Linux"
	return Facts{Highest: None, Reasons: map[string]string{Namespaces: why, UID: why}, Cgroup: "none",
		Root: os.Geteuid() == 0, IDs: IDRange{First: 0, Count: 65536}}, nil
}

// ProbeArg and NoopArg are trials that do not exist here.
const (
	ProbeArg   = "--probe"
	NoopArg    = "--noop"
	OwnRootArg = "--own-root"
)

// ProbeChild always fails here.
func ProbeChild(string) int { return 1 }

// TryOwnRoot is for Linux.
func TryOwnRoot(Facts, string) error { return errors.ErrUnsupported }

// ScopeArg is for Linux.
const ScopeArg = "--scope"

// Scope is for Linux.
func Scope([]string) error { return errors.ErrUnsupported }
