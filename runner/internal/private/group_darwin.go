package private

import "os"

// isPrivate is false: the first group of users is one of all.
func isPrivate(string, os.FileInfo) bool { return false }
