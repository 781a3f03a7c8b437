package private

import "os"

// isPrivateGroup returns false: on this system all users share their first group.
func isPrivateGroup(string, os.FileInfo) bool { return false }
