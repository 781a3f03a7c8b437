//go:build !linux

package testsandbox

// Enter does nothing on this system.
func Enter() {}
