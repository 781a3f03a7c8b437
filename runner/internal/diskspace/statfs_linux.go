package diskspace

import "syscall"

const stReadOnly = 1 // ST_RDONLY

func readOnly(s *syscall.Statfs_t) bool { return s.Flags&stReadOnly != 0 }

func blockSize(s *syscall.Statfs_t) int64 { return int64(s.Frsize) }
