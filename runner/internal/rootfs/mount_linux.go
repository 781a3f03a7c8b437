package rootfs

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"unsafe"

	"hermes-exec/runner/internal/proc"
)

const (
	msNosuidNodev = syscall.MS_NOSUID | syscall.MS_NODEV
	oPath         = 0x200000
)

// mount mounts without the Go scheduler: a call that the runtime knows of gives the thread's
// processor away meanwhile, and its return then costs more than the mount.
//
// Not the obvious code: see docs/why-not-obvious.md ("Mounts without the scheduler").
func mount(source, target, kind string, flags uintptr, data string) error {
	var words [4]*byte
	for i, word := range []string{source, target, kind, data} {
		var err error
		if words[i], err = syscall.BytePtrFromString(word); err != nil {
			return pathError("mount "+kind, target, err)
		}
	}
	if _, _, errno := syscall.RawSyscall6(syscall.SYS_MOUNT, uintptr(unsafe.Pointer(words[0])),
		uintptr(unsafe.Pointer(words[1])), uintptr(unsafe.Pointer(words[2])), flags,
		uintptr(unsafe.Pointer(words[3])), 0); errno != 0 {
		return pathError("mount "+kind, target, errno)
	}
	return nil
}

// bind shows source at target with everything mounted below it.
func bind(source, target string, readOnly bool, attr uint64) error {
	if err := mount(source, target, "", syscall.MS_BIND|syscall.MS_REC, ""); err != nil {
		return err
	}
	if readOnly {
		attr |= attrReadOnly
	}
	if attr == 0 {
		return nil
	}
	err := mountSetattr(target, attr, true)
	if errors.Is(err, syscall.ENOSYS) {
		err = remountTree(target, attr)
	}
	if err != nil {
		return pathError("mount options", target, err)
	}
	return nil
}

// remountTree does the work of mount_setattr for kernels before 5.12.
func remountTree(root string, attr uint64) error {
	mounts, err := proc.Mounts()
	if err != nil {
		return err
	}
	for _, m := range mounts {
		if m.Path != root && !strings.HasPrefix(m.Path, root+"/") {
			continue
		}
		flags := mountFlags(m.Options) | syscall.MS_REMOUNT | syscall.MS_BIND
		if attr&attrReadOnly != 0 {
			flags |= syscall.MS_RDONLY
		}
		if attr&attrNosuid != 0 {
			flags |= syscall.MS_NOSUID
		}
		if attr&attrNodev != 0 {
			flags |= syscall.MS_NODEV
		}
		if attr&attrNoexec != 0 {
			flags |= syscall.MS_NOEXEC
		}
		if err := syscall.Mount("", m.Path, "", flags, ""); err != nil {
			return err
		}
	}
	return nil
}

func mountFlags(options string) uintptr {
	names := map[string]uintptr{
		"ro": syscall.MS_RDONLY, "nosuid": syscall.MS_NOSUID, "nodev": syscall.MS_NODEV, "noexec": syscall.MS_NOEXEC,
		"noatime": syscall.MS_NOATIME, "nodiratime": syscall.MS_NODIRATIME, "relatime": syscall.MS_RELATIME,
	}
	var flags uintptr
	for _, o := range strings.Split(options, ",") {
		flags |= names[o]
	}
	return flags
}

// openDirHandle opens a directory so that it can still be mounted when its path is covered:
// /proc/self/fd/N is a mount source like any other.
func openDirHandle(path string) (*os.File, error) {
	fd, err := syscall.Open(path, oPath|syscall.O_DIRECTORY|syscall.O_CLOEXEC|syscall.O_NOFOLLOW, 0)
	if err != nil {
		return nil, pathError("open", path, err)
	}
	return os.NewFile(uintptr(fd), path), nil
}

func handlePath(f *os.File) string { return "/proc/self/fd/" + strconv.Itoa(int(f.Fd())) }

func isDir(path string) bool {
	st, err := os.Stat(path)
	return err == nil && st.IsDir()
}

func isRegular(path string) bool {
	st, err := os.Stat(path)
	return err == nil && st.Mode().IsRegular()
}

func makeFile(path string) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return fmt.Errorf("view: %w", err)
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		return fmt.Errorf("view: %w", err)
	}
	return f.Close()
}

func makeDir(path string) error {
	if err := os.MkdirAll(path, 0o755); err != nil {
		return fmt.Errorf("view: %w", err)
	}
	return nil
}

func write(path, content string) error {
	if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
		return fmt.Errorf("view: %w", err)
	}
	return nil
}

// sysMountSetattr is the same on every architecture; package syscall lacks it.
const sysMountSetattr = 442

const (
	attrReadOnly = 0x1
	attrNosuid   = 0x2
	attrNodev    = 0x4
	attrNoexec   = 0x8

	attrNoSymFollow = 0x200000
	atRecursive     = 0x8000
)

type mountAttr struct{ set, clear, propagation, usernsFD uint64 }

func mountSetattr(path string, set uint64, recursive bool) error {
	p, err := syscall.BytePtrFromString(path)
	if err != nil {
		return err
	}
	flags := uintptr(0)
	if recursive {
		flags = atRecursive
	}
	attr := mountAttr{set: set}
	cwd := int64(-100)
	_, _, errno := syscall.Syscall6(sysMountSetattr, uintptr(cwd), uintptr(unsafe.Pointer(p)), flags,
		uintptr(unsafe.Pointer(&attr)), unsafe.Sizeof(attr), 0)
	if errno != 0 {
		return errno
	}
	return nil
}

func pathError(op, path string, err error) error {
	return &os.PathError{Op: op, Path: path, Err: err}
}
