//go:build !linux

package isolation

import (
	"errors"
	"os"
)

// Probe returns the facts of a system other than Linux: slots share everything, and only process
// groups keep commands apart.
func Probe() (Facts, error) {
	const why = "only on Linux"
	return Facts{Highest: None, Reasons: map[string]string{Namespaces: why, UID: why}, Cgroup: "none",
		Root: os.Geteuid() == 0, IDs: IDRange{First: 0, Count: 65536}}, nil
}

// Arguments of trials that exist on Linux only.
const (
	ProbeArg   = "--probe"
	NoopArg    = "--noop"
	OwnRootArg = "--own-root"
)

// ProbeChild always fails on this system.
func ProbeChild(string) int { return 1 }

// TryOwnRoot is unsupported on this system.
func TryOwnRoot(Facts, string) error { return errors.ErrUnsupported }

// ScopeArg is unused on this system.
const ScopeArg = "--scope"

// Scope is unsupported on this system.
func Scope(string, []string) error { return errors.ErrUnsupported }
