package rootfs

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"unsafe"

	"hermes-exec/runner/internal/proc"
)

// Enter makes v the file system, host name and network of this process, which must have been
// started in namespaces of its own. In a root of the slot's own, lastPID is for ReserveFirst.
func (v View) Enter() (lastPID *os.File, err error) {
	if v.Kind == ViewShared {
		return nil, nil
	}
	if v.ByBwrap {
		return nil, nil
	}
	if err := mount("none", "/", "", syscall.MS_REC|syscall.MS_PRIVATE, ""); err != nil {
		return nil, err
	}
	if v.Hostname != "" {
		if err := syscall.Sethostname([]byte(v.Hostname)); err != nil {
			return nil, fmt.Errorf("host name: %w", err)
		}
	}
	if !v.Network {
		if err := StartLoopback(); err != nil {
			return nil, fmt.Errorf("loopback: %w", err)
		}
		allowLowPorts()
	}
	if err := v.enterDisk(); err != nil {
		return nil, err
	}
	switch v.Kind {
	case ViewPrivate:
		return nil, v.enterPrivate()
	case ViewOwn:
		return v.enterOwn()
	}
	return nil, v.enterSandbox()
}

// enterPrivate builds a root with the system's programs, read-only, the slot's own directories and
// nothing else.
func (v View) enterPrivate() error {
	root := v.Staging
	if err := mount("tmpfs", root, "tmpfs", msNosuidNodev, "mode=0755,size=16m"); err != nil {
		return err
	}
	steps := []func(string) error{v.systemDirs, v.etc, v.devices, v.ownDirs, v.readOnlyPaths}
	for _, step := range steps {
		if err := step(root); err != nil {
			return err
		}
	}
	if err := makeDir(root + "/proc"); err != nil {
		return err
	}
	if err := mount("proc", root+"/proc", "proc", msNosuidNodev|syscall.MS_NOEXEC, ""); err != nil {
		return err
	}
	if err := mount("", root, "", syscall.MS_REMOUNT|syscall.MS_BIND|syscall.MS_RDONLY|msNosuidNodev, ""); err != nil {
		return err
	}
	if err := os.Chdir(root); err != nil {
		return fmt.Errorf("view: %w", err)
	}
	if err := syscall.PivotRoot(".", "."); err != nil {
		return fmt.Errorf("pivot_root: %w", err)
	}
	if err := syscall.Unmount(".", syscall.MNT_DETACH); err != nil {
		return fmt.Errorf("leave the old root: %w", err)
	}
	return os.Chdir("/")
}

// systemPaths are shown read-only where they exist.
var systemPaths = []string{"/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/opt", "/nix/store",
	"/gnu/store"}

func (v View) systemDirs(root string) error {
	for _, p := range systemPaths {
		if err := showReadOnly(root, p); err != nil {
			return err
		}
	}
	for _, p := range []string{"/run", "/run/lock", "/var", "/var/tmp", "/tmp", "/home", "/mnt", "/srv", "/var/lib",
		"/var/cache", "/var/log"} {
		if err := makeDir(root + p); err != nil {
			return err
		}
	}
	return os.Symlink("/run", root+"/var/run")
}

func showReadOnly(root, path string) error {
	st, err := os.Lstat(path)
	if errors.Is(err, os.ErrNotExist) || errors.Is(err, os.ErrPermission) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("view: %w", err)
	}
	at := root + path
	switch {
	case st.Mode()&os.ModeSymlink != 0:
		to, err := os.Readlink(path)
		if err != nil {
			return fmt.Errorf("view: %w", err)
		}
		if err := makeDir(filepath.Dir(at)); err != nil {
			return err
		}
		if err := os.Symlink(to, at); err != nil && !errors.Is(err, os.ErrExist) {
			return fmt.Errorf("view: %w", err)
		}
		return nil
	case st.IsDir():
		if err := makeDir(at); err != nil {
			return err
		}
	default:
		if err := makeFile(at); err != nil {
			return err
		}
	}
	return bind(path, at, true, attrNosuid|attrNodev)
}

// readOnlyPaths shows the read-only paths of the configuration at their own paths, even below a
// directory that is otherwise hidden. A path that is a link stays usable.
func (v View) readOnlyPaths(root string) error {
	for _, p := range v.ReadOnly {
		p = filepath.Clean(p)
		if !filepath.IsAbs(p) || p == "/" {
			return fmt.Errorf("read-only path %q: %w", p, syscall.EINVAL)
		}
		real, err := filepath.EvalSymlinks(p)
		if err != nil {
			return fmt.Errorf("read-only path: %w", err)
		}
		if _, err := os.Lstat(root + real); err != nil || !isVisible(real) {
			if err := showReadOnly(root, real); err != nil {
				return err
			}
		}
		if real == p || isVisible(p) {
			continue
		}
		if _, err := os.Lstat(root + p); err == nil {
			continue
		}
		if err := makeDir(filepath.Dir(root + p)); err != nil {
			return err
		}
		if err := os.Symlink(real, root+p); err != nil {
			return fmt.Errorf("view: %w", err)
		}
	}
	return nil
}

// isVisible reports whether a path of the sandbox is below one of the system paths.
func isVisible(path string) bool {
	for _, s := range systemPaths {
		if len(path) > len(s) && path[:len(s)] == s && path[len(s)] == '/' {
			return true
		}
	}
	return false
}

func (v View) ownDirs(root string) error {
	for _, b := range v.Binds {
		if err := makeDir(root + b.Target); err != nil {
			return err
		}
		if err := bind(b.Source, root+b.Target, false, attrNosuid|attrNodev); err != nil {
			return err
		}
	}
	return nil
}

var deviceNames = []string{"null", "zero", "full", "random", "urandom", "tty"}

func (v View) devices(root string) error {
	dev := root + "/dev"
	if err := makeDir(dev); err != nil {
		return err
	}
	for _, name := range deviceNames {
		if _, err := os.Lstat("/dev/" + name); err != nil {
			continue
		}
		if err := makeFile(dev + "/" + name); err != nil {
			return err
		}
		if err := bind("/dev/"+name, dev+"/"+name, false, attrNosuid); err != nil {
			return err
		}
	}
	for _, node := range v.Devices {
		if err := makeFile(root + node); err != nil {
			return err
		}
		if err := bind(node, root+node, false, attrNosuid); err != nil {
			return err
		}
	}
	if len(v.Devices) > 0 { // libraries of GPUs look there for what belongs to a device node
		if err := showReadOnly(root, "/sys"); err != nil {
			return err
		}
	}
	return deviceLinks(dev, shmSize)
}

// deviceLinks makes the links and mount points of a new /dev, and mounts its file systems.
func deviceLinks(dev, shmSize string) error {
	links := [][2]string{{"/proc/self/fd", "fd"}, {"/proc/self/fd/0", "stdin"}, {"/proc/self/fd/1", "stdout"},
		{"/proc/self/fd/2", "stderr"}, {"pts/ptmx", "ptmx"}}
	for _, l := range links {
		if err := os.Symlink(l[0], dev+"/"+l[1]); err != nil {
			return fmt.Errorf("view: %w", err)
		}
	}
	for _, d := range []string{"pts", "shm", "mqueue"} {
		if err := makeDir(dev + "/" + d); err != nil {
			return err
		}
	}
	return newDeviceMounts(dev, shmSize)
}

// shmSize is the most that a slot may keep in /dev/shm, which is memory of the sandbox that no
// other limit may count.
const shmSize = "256m"

// maxTerminals is how many terminals a slot may have; the whole machine has 3,072 by default.
const maxTerminals = "64"

// newDeviceMounts mounts terminals, shared memory and message queues for the slot.
func newDeviceMounts(dev, shmSize string) error {
	if isDir(dev + "/pts") {
		if err := mount("devpts", dev+"/pts", "devpts", syscall.MS_NOSUID|syscall.MS_NOEXEC,
			"newinstance,ptmxmode=0666,mode=0620,max="+maxTerminals); err != nil {
			return err
		}
	}
	if isDir(dev + "/shm") {
		if err := mount("tmpfs", dev+"/shm", "tmpfs", msNosuidNodev, "mode=1777,size="+shmSize); err != nil {
			return err
		}
	}
	if isDir(dev + "/mqueue") {
		// Not every kernel has it, and without it nothing of the sandbox shows.
		_ = syscall.Mount("mqueue", dev+"/mqueue", "mqueue", msNosuidNodev|syscall.MS_NOEXEC, "")
	}
	return nil
}

// enterSandbox keeps the sandbox's root and covers the directories of others.
func (v View) enterSandbox() error {
	sources := make([]*os.File, len(v.Binds))
	for i, b := range v.Binds {
		f, err := openDirHandle(b.Source)
		if err != nil {
			return err
		}
		defer f.Close()
		sources[i] = f
	}
	if err := mount("tmpfs", v.BaseDir, "tmpfs", msNosuidNodev, "mode=0755,size=1m"); err != nil {
		return err
	}
	for i, b := range v.Binds {
		if isInside(b.Target, v.BaseDir) {
			if err := makeDir(b.Target); err != nil {
				return err
			}
		} else if !isDir(b.Target) {
			continue
		}
		if err := bind(handlePath(sources[i]), b.Target, false, attrNosuid|attrNodev); err != nil {
			return err
		}
	}
	if err := v.ownNames(); err != nil {
		return err
	}
	if err := mount("", v.BaseDir, "", syscall.MS_REMOUNT|syscall.MS_BIND|syscall.MS_RDONLY|msNosuidNodev,
		""); err != nil {
		return err
	}
	if err := newDeviceMounts("/dev", shmSize); err != nil {
		return err
	}
	if st, err := os.Lstat("/dev/ptmx"); err == nil && st.Mode()&os.ModeCharDevice != 0 && isDir("/dev/pts") {
		if err := bind("/dev/pts/ptmx", "/dev/ptmx", false, 0); err != nil {
			return err
		}
	}
	if v.ImageReadOnly {
		if err := v.imageReadOnly(); err != nil {
			return err
		}
	}
	return mount("proc", "/proc", "proc", msNosuidNodev|syscall.MS_NOEXEC, "")
}

// imageReadOnly makes the whole sandbox read-only, except the slot's own directories and the shared
// directories.
func (v View) imageReadOnly() error {
	kept := append([]string{v.BaseDir, "/proc", "/dev/pts", "/dev/ptmx", "/dev/shm", "/dev/mqueue"}, v.Shared...)
	for _, b := range v.Binds {
		kept = append(kept, b.Target)
	}
	mounts, err := proc.Mounts()
	if err != nil {
		return err
	}
	for _, m := range mounts {
		if slices.ContainsFunc(kept, func(path string) bool { return isInside(m.Path, path) }) {
			continue
		}
		flags := mountFlags(m.Options) | syscall.MS_REMOUNT | syscall.MS_BIND | syscall.MS_RDONLY
		err := mount("", m.Path, "", flags, "")
		if err != nil && !errors.Is(err, syscall.EINVAL) && !errors.Is(err, syscall.ENOENT) { // covered
			return err
		}
	}
	return nil
}

// ownNames covers passwd and group with the slot's own.
func (v View) ownNames() error {
	for path, content := range map[string]string{"/etc/passwd": v.Passwd, "/etc/group": v.Group} {
		if content == "" || !isRegular(path) {
			continue
		}
		own := filepath.Join(v.BaseDir, "."+filepath.Base(path))
		if err := write(own, content); err != nil {
			return err
		}
		real, err := filepath.EvalSymlinks(path)
		if err != nil {
			return fmt.Errorf("view: %w", err)
		}
		if err := bind(own, real, true, attrNosuid|attrNodev); err != nil {
			return err
		}
	}
	return nil
}

func isInside(path, dir string) bool {
	return path == dir || len(path) > len(dir) && path[:len(dir)] == dir && path[len(dir)] == '/'
}

// allowLowPorts lets every user listen on all ports of this process's own network namespace, as in a
// container of Docker. Where /proc/sys is read-only, capabilities decide.
func allowLowPorts() {
	_ = os.WriteFile("/proc/sys/net/ipv4/ip_unprivileged_port_start", []byte("0"), 0)
}

// StartLoopback sets up the loopback interface of a network namespace.
func StartLoopback() error {
	fd, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_DGRAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer syscall.Close(fd)
	var req struct {
		name  [16]byte
		flags uint16
		_     [22]byte
	}
	copy(req.name[:], "lo")
	req.flags = syscall.IFF_UP | syscall.IFF_RUNNING
	if _, _, errno := syscall.Syscall(syscall.SYS_IOCTL, uintptr(fd), syscall.SIOCSIFFLAGS,
		uintptr(unsafe.Pointer(&req))); errno != 0 {
		return errno
	}
	return nil
}
