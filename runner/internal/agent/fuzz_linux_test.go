package agent

import "testing"

// A tenant writes its own environment.
func FuzzEnvironment(f *testing.F) {
	f.Add([]byte("A=1\x00HERMES_EXEC_REQUEST=7.boot.slot\x00"))
	f.Add([]byte("HERMES_EXEC_REQUEST=.boot.slot"))
	f.Fuzz(func(t *testing.T, input []byte) { _, _ = tokenIn(input, "boot.slot") })
}
