package rootfs

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"unsafe"

	"hermes-exec/runner/internal/proc"
)

// ReadImage determines how slots see this sandbox, whose directories must not change afterwards.
// home is the runner's own directory; directory receives copies of directories that cannot have a
// layer. Slots write directly to the directories in shared.
func ReadImage(home string, shared []string, directory string) (*Image, error) {
	mounts, err := mountsByPath()
	if err != nil {
		return nil, err
	}
	r := imageReader{home: home, mounts: mounts, image: Image{Skeleton: directory, ShmSize: shmSize}}
	for _, path := range shared {
		real, err := filepath.EvalSymlinks(filepath.Clean(path))
		if err != nil {
			return nil, err
		}
		if _, mounted := mounts[real]; !mounted {
			return nil, fmt.Errorf("nothing is mounted at %s, so it cannot be shared", path)
		}
		r.shared = append(r.shared, real)
	}
	for option := range strings.SplitSeq(mounts["/dev/shm"].Super, ",") {
		if size, ok := strings.CutPrefix(option, "size="); ok {
			r.image.ShmSize = size
		}
	}
	if err := os.MkdirAll(directory, 0o755); err != nil {
		return nil, err
	}
	if err := r.split("/", false); err != nil {
		return nil, fmt.Errorf("the sandbox's directories cannot be read: %w", err)
	}
	for _, path := range r.shared {
		if !slices.Contains(r.image.Shared, path) {
			return nil, fmt.Errorf("%s cannot be shared: each slot has its own copy of the directories around it", path)
		}
	}
	for _, dir := range []string{"/proc", "/sys", "/dev"} {
		if err := os.MkdirAll(directory+dir, 0o755); err != nil {
			return nil, err
		}
	}
	if err := r.devices("/dev"); err != nil {
		return nil, err
	}
	return &r.image, nil
}

// The most that a small directory holds.
//
// Not the obvious code: see docs/why-not-obvious.md ("Copies of small directories").
const smallEntries, smallBytes = 16, 64 << 10

var errNotSmall = errors.New("not small")

type imageReader struct {
	home   string
	shared []string
	mounts map[string]proc.Mount
	image  Image
}

// split makes a directory of the skeleton because others are mounted in it, or because it is the
// root. whole copies its directories too.
func (r *imageReader) split(path string, whole bool) error {
	entries, err := os.ReadDir(path)
	if err != nil {
		return err
	}
	for _, e := range entries {
		at := filepath.Join(path, e.Name())
		var st syscall.Stat_t
		if err := syscall.Lstat(at, &st); err != nil {
			return pathError("stat", at, err)
		}
		_, mounted := r.mounts[at]
		switch kind := st.Mode & syscall.S_IFMT; {
		case kind == syscall.S_IFDIR:
			err = r.directory(at, &st, whole)
		case kind == syscall.S_IFLNK:
			err = r.link(at, &st)
		case mounted && (kind != syscall.S_IFREG || slices.Contains(r.shared, at)):
			r.image.Shared = append(r.image.Shared, at) // a socket or a device is the same for all who open it
			err = os.WriteFile(r.image.Skeleton+at, nil, 0o600)
		case kind == syscall.S_IFREG:
			err = r.file(at, &st)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (r *imageReader) directory(path string, st *syscall.Stat_t, whole bool) error {
	if path == r.home || path == "/proc" || path == "/sys" || path == "/dev" {
		return nil
	}
	if err := os.Mkdir(r.image.Skeleton+path, 0o700); err != nil {
		return err
	}
	var err error
	m, mounted := r.mounts[path]
	switch {
	case slices.Contains(r.shared, path):
		r.image.Shared = append(r.image.Shared, path)
	case mounted && m.Kind == "tmpfs":
		r.image.Memory = append(r.image.Memory,
			MemoryMount{Path: path, Flags: uint64(mountFlags(m.Options)), Options: m.Super})
	case holdsMounts(r.mounts, path):
		err = r.split(path, whole || path == "/etc")
	case mounted && mountFlags(m.Options)&syscall.MS_RDONLY != 0:
		r.image.ReadOnly = append(r.image.ReadOnly, path)
	case !mounted && (whole || isSmall(path)):
		err = r.split(path, true)
	default:
		r.image.Directories = append(r.image.Directories, path)
	}
	return errors.Join(err, r.copyMetadata(path, st)) // the entries added to it have changed its time
}

// isSmall reports whether a directory holds so little that a copy costs less than a layer.
func isSmall(path string) bool {
	entries, bytes := 0, int64(0)
	return filepath.WalkDir(path, func(at string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := e.Info()
		if err != nil {
			return err
		}
		if entries++; info.Mode().IsRegular() {
			bytes += info.Size()
			if n, _ := syscall.Listxattr(at, nil); n > 0 || info.Sys().(*syscall.Stat_t).Nlink > 1 {
				return errNotSmall // a copy would lack its capabilities and its other names
			}
		} else if !info.IsDir() && info.Mode()&fs.ModeSymlink == 0 {
			return errNotSmall // a device, FIFO or socket, which is not copied
		}
		if entries > smallEntries || bytes > smallBytes {
			return errNotSmall
		}
		return nil
	}) == nil
}

// mountsByPath returns the mounts of this sandbox; of several at one path the last, which covers
// the others.
func mountsByPath() (map[string]proc.Mount, error) {
	table, err := proc.Mounts()
	mounts := map[string]proc.Mount{}
	for _, m := range table {
		mounts[m.Path] = m
	}
	return mounts, err
}

// holdsMounts reports whether something is mounted below a directory.
func holdsMounts(mounts map[string]proc.Mount, path string) bool {
	for at := range mounts {
		if at != path && isInside(at, path) {
			return true
		}
	}
	return false
}

// giveTo gives a path the owner of original.
func giveTo(at string, st *syscall.Stat_t, original string) error {
	err := os.Lchown(at, int(st.Uid), int(st.Gid))
	if errors.Is(err, syscall.EINVAL) {
		return fmt.Errorf("%s belongs to a user or group that does not exist in this sandbox", original)
	}
	return err
}

// copyMetadata gives an entry of the skeleton the owner, mode and times of its original.
func (r *imageReader) copyMetadata(path string, st *syscall.Stat_t) error {
	at := r.image.Skeleton + path
	if err := giveTo(at, st, path); err != nil {
		return err
	}
	if st.Mode&syscall.S_IFMT == syscall.S_IFLNK {
		return setLinkTimes(at, st)
	}
	if err := syscall.Chmod(at, st.Mode&0o7777); err != nil {
		return pathError("chmod", at, err)
	}
	return syscall.UtimesNano(at, []syscall.Timespec{st.Atim, st.Mtim})
}

// setLinkTimes gives a symbolic link the times of its original.
func setLinkTimes(at string, st *syscall.Stat_t) error {
	path, err := syscall.BytePtrFromString(at)
	if err != nil {
		return err
	}
	const cwd, noFollow = -100, 0x100
	dir, times := cwd, [2]syscall.Timespec{st.Atim, st.Mtim}
	if _, _, errno := syscall.Syscall6(syscall.SYS_UTIMENSAT, uintptr(dir), uintptr(unsafe.Pointer(path)),
		uintptr(unsafe.Pointer(&times)), noFollow, 0, 0); errno != 0 {
		return pathError("utimes", at, errno)
	}
	return nil
}

func (r *imageReader) link(path string, st *syscall.Stat_t) error {
	to, err := os.Readlink(path)
	if err != nil {
		return err
	}
	if err := os.Symlink(to, r.image.Skeleton+path); err != nil {
		return err
	}
	return r.copyMetadata(path, st)
}

func (r *imageReader) file(path string, st *syscall.Stat_t) error {
	in, err := os.Open(path)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.OpenFile(r.image.Skeleton+path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = out.ReadFrom(in)
	if err := errors.Join(err, out.Close()); err != nil {
		return err
	}
	return r.copyMetadata(path, st)
}

// devices finds the sandbox's device nodes.
func (r *imageReader) devices(dir string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		at := filepath.Join(dir, e.Name())
		info, err := os.Lstat(at) // Lstat, because the entry does not show a mount on it
		switch {
		case err != nil:
			return err
		case at == "/dev/ptmx" || at == "/dev/console":
		case info.Mode()&os.ModeDevice != 0:
			r.image.Devices = append(r.image.Devices, at)
		case info.IsDir() && at != "/dev/pts" && at != "/dev/shm" && at != "/dev/mqueue":
			if err := r.devices(at); err != nil {
				return err
			}
		}
	}
	return nil
}
