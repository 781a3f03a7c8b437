package disk

import "syscall"

// ChangedAt is the time of the last change of a file or of what is known of it.
func ChangedAt(s *syscall.Stat_t) syscall.Timespec { return s.Ctimespec }
