//go:build !linux

package limits

// HasOwnPIDLimit is for Linux.
func HasOwnPIDLimit() bool { return false }

// NamespaceShare is for Linux.
func NamespaceShare() map[string]int64 { return nil }
