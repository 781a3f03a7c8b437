package rootfs

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"syscall"

	"hermes-exec/runner/internal/seccomp"
)

// The paths of /proc and /sys that an OCI runtime hides, and those that it makes read-only.
var (
	maskedPaths = []string{"/proc/asound", "/proc/acpi", "/proc/kcore", "/proc/keys", "/proc/latency_stats",
		"/proc/timer_list", "/proc/timer_stats", "/proc/sched_debug", "/proc/scsi", "/proc/interrupts",
		"/sys/firmware", "/sys/devices/virtual/powercap"}
	readOnlyProc = []string{"/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"}
)

// enterOwn makes the image the root of this process, with a layer of the slot's own over each of
// its directories, or, without a layer, the image itself. Before the new root is entered, only the
// directories of the skeleton are looked up in it, which are no links.
func (v View) enterOwn() (lastPID *os.File, err error) {
	if v.Layer == "" {
		if lastPID, err = v.ownProc(); err != nil {
			return nil, err
		}
		return lastPID, v.ownSys("")
	}
	if err := v.proveClosed(); err != nil {
		return nil, err
	}
	if len(v.Stack) > 0 {
		if err := os.Chdir(v.Store); err != nil {
			return nil, fmt.Errorf("view: %w", err)
		}
	}
	root := v.Staging
	if err := v.mountLayer(0, v.Image.Skeleton, root); err != nil {
		return nil, err
	}
	for i, directory := range v.Image.Directories {
		if err := checkMountPoint(root, directory); err != nil {
			return nil, err
		}
		if err := v.mountLayer(i+1, directory, root+directory); err != nil {
			return nil, err
		}
	}
	sandbox, err := openDirHandle("/")
	if err != nil {
		return nil, err
	}
	defer sandbox.Close()
	if err := os.Chdir(root); err != nil {
		return nil, fmt.Errorf("view: %w", err)
	}
	if err := syscall.PivotRoot(".", "."); err != nil {
		return nil, fmt.Errorf("pivot_root: %w", err)
	}
	// The sandbox's root lies over the slot's until it is left. Paths that begin with "/" are the
	// slot's.
	if lastPID, err = v.mountSpecial(handlePath(sandbox)); err != nil {
		return nil, err
	}
	if err := syscall.Unmount(".", syscall.MNT_DETACH); err != nil {
		return nil, fmt.Errorf("leave the old root: %w", err)
	}
	return lastPID, os.Chdir("/")
}

// mountSpecial mounts everything that is not part of the image. sandbox is a path to the sandbox's
// root.
func (v View) mountSpecial(sandbox string) (lastPID *os.File, err error) {
	for _, path := range []string{"/proc", "/sys", "/dev"} {
		if err := checkMountPoint("", path); err != nil {
			return nil, err
		}
	}
	if lastPID, err = v.ownProc(); err != nil {
		return nil, err
	}
	for _, step := range []func(string) error{v.ownSys, v.ownDev, v.ownMounts} {
		if err := step(sandbox); err != nil {
			return nil, err
		}
	}
	return lastPID, nil
}

// ReserveFirst gives the next process of this pid namespace the number seccomp.FirstPID. The
// numbers below it belong to this process and its threads, all of which exist. lastPID comes from
// Enter.
func ReserveFirst(lastPID *os.File) error {
	_, err := lastPID.WriteString(strconv.Itoa(seccomp.FirstPID - 1))
	if err := errors.Join(err, lastPID.Close()); err != nil {
		return fmt.Errorf("numbers of processes: %w", err)
	}
	return nil
}

// ownProc also opens the file that sets the number of the last process, before the kernel's
// settings become read-only.
func (v View) ownProc() (lastPID *os.File, err error) {
	if err := mount("proc", "/proc", "proc", msNosuidNodev|syscall.MS_NOEXEC, ""); err != nil {
		return nil, err
	}
	if lastPID, err = os.OpenFile("/proc/sys/kernel/ns_last_pid", os.O_WRONLY, 0); err != nil {
		return nil, fmt.Errorf("view: %w", err)
	}
	if v.MaxPIDs > 0 {
		most := strconv.FormatInt(v.MaxPIDs+seccomp.FirstPID, 10)
		if err := os.WriteFile("/proc/sys/kernel/pid_max", []byte(most), 0); err != nil {
			return nil, fmt.Errorf("limit of processes: %w", err)
		}
	}
	for _, path := range readOnlyProc {
		if _, err := os.Lstat(path); err != nil {
			continue
		}
		if err := bind(path, path, true, attrNosuid|attrNodev|attrNoexec); err != nil {
			return nil, err
		}
	}
	return lastPID, nil
}

func (v View) ownSys(sandbox string) error {
	if err := makeDir("/sys"); err != nil {
		return err
	}
	if err := bind(sandbox+"/sys", "/sys", true, attrNosuid|attrNodev|attrNoexec); err != nil {
		return err
	}
	for _, path := range maskedPaths {
		st, err := os.Lstat(path)
		if err != nil {
			continue
		}
		if st.IsDir() {
			err = mount("tmpfs", path, "tmpfs", syscall.MS_RDONLY|msNosuidNodev|syscall.MS_NOEXEC, "size=0")
		} else {
			err = bind(sandbox+"/dev/null", path, false, 0)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (v View) ownDev(sandbox string) error {
	if err := mount("tmpfs", "/dev", "tmpfs", syscall.MS_NOSUID, "mode=0755,size=64k"); err != nil {
		return err
	}
	for _, path := range v.Image.Devices {
		if err := makeFile(path); err != nil {
			return err
		}
		if err := bind(sandbox+path, path, false, 0); err != nil {
			return err
		}
	}
	return deviceLinks("/dev", v.Image.ShmSize)
}

// ownMounts mounts the sandbox's file systems in memory, the directories that it shares or that
// nobody may write to, and the slot's directories of the runner.
func (v View) ownMounts(sandbox string) error {
	for i, m := range v.Image.Memory {
		if err := checkMountPoint("", m.Path); err != nil {
			return err
		}
		if err := v.ownMemory(i, m, sandbox); err != nil {
			return err
		}
	}
	for _, path := range slices.Concat(v.Image.Shared, v.Image.ReadOnly) {
		if err := checkMountPoint("", path); err != nil {
			return err
		}
		if err := bind(sandbox+path, path, slices.Contains(v.Image.ReadOnly, path), 0); err != nil {
			return err
		}
	}
	if err := makeMissing("/tmp", 0o1777, 0, 0); err != nil {
		return err
	}
	if err := makeMissing(v.Workspace, 0o755, int(v.Owner.UID), int(v.Owner.GID)); err != nil {
		return err
	}
	for _, b := range v.Binds {
		if err := makeDir(b.Target); err != nil {
			return err
		}
		if err := bind(sandbox+b.Source, b.Target, b.ReadOnly, attrNosuid|attrNodev|attrNoexec); err != nil {
			return err
		}
	}
	return nil
}

// ownMemory mounts the slot's own file system in memory n, or a directory of the slot's disk for it.
func (v View) ownMemory(n int, m MemoryMount, sandbox string) error {
	if v.Disk == nil {
		return mount("tmpfs", m.Path, "tmpfs", uintptr(m.Flags), m.Options)
	}
	at := filepath.Join(sandbox+v.Disk.At, "memory"+strconv.Itoa(n))
	if err := makeAlike(at, sandbox+m.Path); err != nil {
		return err
	}
	attr := uint64(attrNosuid | attrNodev)
	if m.Flags&syscall.MS_NOEXEC != 0 {
		attr |= attrNoexec
	}
	return bind(at, m.Path, m.Flags&syscall.MS_RDONLY != 0, attr)
}

// HideProcFromThread gives the calling thread a mount namespace of its own in which /proc does not
// show this process, whose memory and descriptors are open to its own threads, and in which links
// in /proc lead nowhere. Other threads must start the commands.
func HideProcFromThread() error {
	if err := syscall.Unshare(syscall.CLONE_NEWNS); err != nil {
		return fmt.Errorf("mount namespace of a thread: %w", err)
	}
	if err := mountSetattr("/proc", attrNoSymFollow, true); err != nil {
		return pathError("mount options", "/proc", err)
	}
	self := fmt.Sprintf("/proc/%d", os.Getpid())
	return mount("tmpfs", self, "tmpfs", msNosuidNodev|syscall.MS_NOEXEC|syscall.MS_RDONLY, "mode=555,nr_inodes=2")
}

// TryOwnRoot tries, in namespaces of its own, a root of a slot's own with directory for its layer.
func TryOwnRoot(directory string) error {
	image := Image{Skeleton: filepath.Join(directory, "lower"), ShmSize: shmSize, Directories: findRootDirectory()}
	for _, name := range append([]string{"/proc", "/sys", "/dev"}, image.Directories...) {
		if err := os.Mkdir(image.Skeleton+name, 0o755); err != nil {
			return err
		}
	}
	v := View{Kind: ViewOwn, Staging: filepath.Join(directory, "root"), Layer: filepath.Join(directory, "layer"),
		Image: &image, Network: true, Workspace: "/workspace"}
	lastPID, err := v.Enter()
	if err != nil {
		return err
	}
	if err := ReserveFirst(lastPID); err != nil {
		return err
	}
	return HideProcFromThread()
}

// findRootDirectory returns a directory of the root's own file system without mounts in it, over
// which a layer must be possible, or nothing.
func findRootDirectory() []string {
	var root, st syscall.Stat_t
	if err := syscall.Stat("/", &root); err != nil {
		return nil
	}
	mounts, err := mountsByPath()
	if err != nil {
		return nil
	}
	entries, _ := os.ReadDir("/")
	for _, e := range entries {
		at := "/" + e.Name()
		_, mounted := mounts[at]
		if err := syscall.Lstat(at, &st); err == nil && e.IsDir() && st.Dev == root.Dev && !mounted &&
			!holdsMounts(mounts, at) {
			return []string{at}
		}
	}
	return nil
}

// TryMounts tries, in namespaces of its own, the mounts of a view.
func TryMounts() error {
	if err := mount("none", "/", "", syscall.MS_REC|syscall.MS_PRIVATE, ""); err != nil {
		return err
	}
	if err := mount("proc", "/proc", "proc", msNosuidNodev|syscall.MS_NOEXEC, ""); err != nil {
		return fmt.Errorf("a new /proc is refused: %w", err)
	}
	if os.Getpid() != 1 {
		return errors.New("not the first process of a new pid namespace")
	}
	if err := newDeviceMounts("/dev", shmSize); err != nil {
		return err
	}
	if err := mount("tmpfs", "/dev", "tmpfs", msNosuidNodev, "mode=0755,size=64k"); err != nil {
		return err
	}
	if err := os.Chdir("/dev"); err != nil {
		return err
	}
	if err := syscall.PivotRoot(".", "."); err != nil {
		return fmt.Errorf("pivot_root: %w", err)
	}
	return nil
}
