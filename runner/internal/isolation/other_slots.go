//go:build !linux

package isolation

// EnterArg is a step that does not exist here.
const EnterArg = "--enter"

// Enter always fails here.
func Enter([]string) int { return 1 }
