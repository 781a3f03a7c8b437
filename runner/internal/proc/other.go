//go:build !linux

package proc

// BootTicks is not known here.
func BootTicks() uint64 { return 0 }
