//go:build !linux

package limits

// OwnPIDLimit is for Linux.
func OwnPIDLimit() bool { return false }

// NamespaceShare is for Linux.
func NamespaceShare() map[string]int64 { return nil }
