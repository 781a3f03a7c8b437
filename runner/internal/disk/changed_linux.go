package disk

import "syscall"

// ChangeTime returns the time of the last change of a file or its metadata.
func ChangeTime(s *syscall.Stat_t) syscall.Timespec { return s.Ctim }
