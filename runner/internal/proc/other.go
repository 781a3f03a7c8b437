//go:build !linux

package proc

// BootTicks returns 0 on this system.
func BootTicks() uint64 { return 0 }
