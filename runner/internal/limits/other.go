//go:build !linux

package limits

// HasOwnPIDLimit returns false on this system.
func HasOwnPIDLimit() bool { return false }

// HasMemoryAttributes returns false on this system.
func HasMemoryAttributes() bool { return false }

// CountsByNamespace returns false on this system.
func CountsByNamespace() bool { return false }

// NamespaceShare returns nothing on this system.
func NamespaceShare() map[string]int64 { return nil }
