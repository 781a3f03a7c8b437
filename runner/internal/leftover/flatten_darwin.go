package leftover

import "time"

// Flatten does nothing: no sandbox is a container of this system.
func Flatten(string, time.Time, time.Duration) []string { return nil }
