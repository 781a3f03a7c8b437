package rootfs

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"unsafe"
)

// bytesPerFile bounds the number of files of a file system in memory, which need memory too.
const bytesPerFile = 4096

// sysMoveMount is the same on every architecture (Linux 5.2); package syscall lacks it.
const (
	sysMoveMount = 429
	fromFD       = 4
)

// enterDisk mounts the slot's file system of a limited size, and makes the directories on it that
// the slot sees.
func (v *View) enterDisk() error {
	d := v.Disk
	if d == nil {
		return nil
	}
	if err := makeDir(d.At); err != nil {
		return err
	}
	if err := d.mount(); err != nil {
		return err
	}
	v.Binds = slices.Clone(v.Binds)
	for i, b := range v.Binds {
		if !b.OnDisk {
			continue
		}
		at := filepath.Join(d.At, filepath.Base(b.Source))
		if err := makeAlike(at, b.Source); err != nil {
			return err
		}
		v.Binds[i].Source = at
	}
	return nil
}

func (d *Disk) mount() error {
	if d.InFile {
		return moveMount(d.FD, d.At)
	}
	return mount("tmpfs", d.At, "tmpfs", msNosuidNodev,
		fmt.Sprintf("mode=0700,size=%d,nr_inodes=%d", d.Bytes, d.Bytes/bytesPerFile+1024))
}

// moveMount attaches a mount that is in no mount namespace, and closes its descriptor.
func moveMount(fd int, at string) error {
	defer syscall.Close(fd)
	empty, err := syscall.BytePtrFromString("")
	if err != nil {
		return err
	}
	to, err := syscall.BytePtrFromString(at)
	if err != nil {
		return err
	}
	cwd := int64(-100)
	if _, _, errno := syscall.Syscall6(sysMoveMount, uintptr(fd), uintptr(unsafe.Pointer(empty)), uintptr(cwd),
		uintptr(unsafe.Pointer(to)), fromFD, 0); errno != 0 {
		return pathError("mount disk", at, errno)
	}
	return nil
}

// makeAlike makes a directory with the mode and owner of another.
func makeAlike(path, like string) error {
	var st syscall.Stat_t
	if err := syscall.Lstat(like, &st); err != nil {
		return pathError("stat", like, err)
	}
	if err := os.Mkdir(path, 0o700); err != nil {
		return fmt.Errorf("view: %w", err)
	}
	if int(st.Uid) != os.Geteuid() || int(st.Gid) != os.Getegid() {
		if err := os.Lchown(path, int(st.Uid), int(st.Gid)); err != nil {
			return fmt.Errorf("view: %w", err)
		}
	}
	if err := syscall.Chmod(path, st.Mode&0o7777); err != nil {
		return pathError("chmod", path, err)
	}
	return nil
}
