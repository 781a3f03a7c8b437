package slots

import (
	"fmt"
	"path/filepath"
	"sync"

	"hermes-exec/runner/internal/ipc"
	"hermes-exec/runner/internal/isolation"
	"hermes-exec/runner/internal/limits"
	"hermes-exec/runner/internal/link"
	"hermes-exec/runner/internal/rootfs"
	"hermes-exec/runner/internal/slotdisk"
)

// diskTrial is the result of the trial whether slots can have disks in files. Only conclusive
// results are kept.
type diskTrial struct {
	mu     sync.Mutex
	maker  *slotdisk.Maker
	refuse error
}

// diskChoice is how the disk of a slot is limited.
type diskChoice struct {
	sizeMB int64           // 0: it is not
	maker  *slotdisk.Maker // nil: the file system is in memory
	noFile error           // why it is in memory although the runner is root of a host
}

func (d diskChoice) isInMemory() bool { return d.sizeMB > 0 && d.maker == nil }

func (d diskChoice) String() string {
	switch {
	case d.maker != nil:
		return "file system of the slot in a file"
	case d.noFile != nil:
		return fmt.Sprintf("file system of the slot in memory (none in a file: %v)", d.noFile)
	}
	return "file system of the slot in memory"
}

// try returns a maker of disks in files below base, or why there can be none.
func (d *diskTrial) try(base string, sizeMB int64) (*slotdisk.Maker, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.maker == nil && d.refuse == nil {
		maker := slotdisk.NewMaker(filepath.Join(base, "disks"))
		disk, err := maker.Make(sizeMB)
		switch {
		case err == nil:
			disk.Close()
			d.maker = maker
		case ipc.IsShortage(err):
			return nil, err
		default:
			d.refuse = err
		}
	}
	return d.maker, d.refuse
}

// chooseDisk returns where a slot's file system of a limited size is, or the reason why the slot
// cannot have one.
func chooseDisk(s *level, p CreateParams) (choice diskChoice, reason string, err error) {
	switch {
	case s.setup.Level == isolation.Exclusive:
		return choice, "an exclusive slot writes to the whole sandbox", nil
	case s.setup.Level != isolation.Namespaces:
		return choice, fmt.Sprintf("slots of the level %s share a file system", s.setup.Level), nil
	case s.method == isolation.MethodBwrap:
		return choice, "bubblewrap makes the slot's file system", nil
	case s.image == nil && !p.PrivateRoot && s.setup.Switch:
		return choice, "without a root of its own the slot can also write to directories of the sandbox", nil
	case s.image != nil && !limits.HasMemoryAttributes():
		return choice, "a slot with a root of its own needs Linux 6.6 for it", nil
	}
	choice.sizeMB = *p.Limits.DiskMB
	if p.PrivateRoot && s.method == isolation.MethodDirect {
		choice.maker, choice.noFile = s.m.disks.try(s.m.base, choice.sizeMB)
		if ipc.IsShortage(choice.noFile) {
			return choice, "", failure("exhausted", "a disk for the slot cannot be made now: %v", choice.noFile)
		}
	}
	return choice, "", nil
}

// place puts the slot's own directories on its disk. dir is the slot's directory.
func (d diskChoice) place(v *rootfs.View, dir string) {
	if d.sizeMB == 0 {
		return
	}
	v.Disk = &rootfs.Disk{At: v.Layer, Bytes: d.sizeMB << 20, InFile: d.maker != nil}
	if v.Disk.At == "" {
		v.Disk.At = filepath.Join(dir, "disk")
	}
}

// newDisk makes the disk of the slot's next agent, if it is in a file. Before, the last one must be
// gone, so that disks cannot pile up.
func (s *slot) newDisk() error {
	if s.limited.maker == nil {
		return nil
	}
	if s.disk != nil {
		s.disk.Wait()
	}
	disk, err := s.limited.maker.Make(s.limited.sizeMB)
	if err != nil {
		return failure(link.Refusal(err), "the slot's disk cannot be made: %v", err)
	}
	s.liveMu.Lock()
	defer s.liveMu.Unlock()
	s.disk = disk
	return nil
}

// diskUse returns how much of the shared file system the slot's disk takes, if that is in a file.
func (s *slot) diskUse() int64 {
	s.liveMu.Lock()
	defer s.liveMu.Unlock()
	if s.disk == nil {
		return 0
	}
	return s.disk.UsedBytes()
}
