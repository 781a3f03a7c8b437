//go:build !linux

package isolation

import (
	"hermes-exec/runner/internal/ipc"
)

// EnterArg is a step that does not exist here.
const EnterArg = "--enter"

// Enter always fails here.
func Enter([]string) int { return 1 }

// MakeGroups holds no limit here.
func MakeGroups(Facts, string, ipc.Limits) ([]Join, map[string]string, error) {
	return nil, map[string]string{}, nil
}

// RemoveGroups has nothing to remove here.
func RemoveGroups([]Join) error { return nil }

// BootTicks is not known here.
func BootTicks() uint64 { return 0 }
