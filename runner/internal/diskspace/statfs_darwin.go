package diskspace

import "syscall"

const mntReadOnly = 1 // MNT_RDONLY

func readOnly(s *syscall.Statfs_t) bool { return s.Flags&mntReadOnly != 0 }

func blockSize(s *syscall.Statfs_t) int64 { return int64(s.Bsize) }
