//go:build !linux

package rights

// ContainerCaps returns nothing on this system.
func ContainerCaps(uint64) []int { return nil }
