package disk

import "syscall"

// ChangeTime is the time of the last change of a file or of what is known of it.
func ChangeTime(s *syscall.Stat_t) syscall.Timespec { return s.Ctimespec }
