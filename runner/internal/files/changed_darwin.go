package files

import "syscall"

func changedAt(s *syscall.Stat_t) syscall.Timespec { return s.Ctimespec }
