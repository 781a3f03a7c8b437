//go:build !linux

package isolation

// EnterArg is unused on this system.
const EnterArg = "--enter"

// Enter always fails on this system.
func Enter([]string) int { return 1 }
