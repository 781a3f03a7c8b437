package slotdisk

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"syscall"
	"unsafe"

	"hermes-exec/runner/internal/bounded"
	"hermes-exec/runner/internal/disk"
	"hermes-exec/runner/internal/diskspace"
	"hermes-exec/runner/internal/initproc"
	"hermes-exec/runner/internal/ipc"
	"hermes-exec/runner/internal/program"
)

const systemPrograms = "PATH=/usr/sbin:/sbin:/usr/bin:/bin"

// makeTemplate makes a file with an empty file system. Nothing of a slot outlives its processes, so
// there is no journal; its UUID is zero, so that no host lists it by its name.
func makeTemplate(path string, size int64) error {
	file, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	if err := errors.Join(file.Truncate(size), file.Close()); err != nil {
		return err
	}
	mkfs, errno := program.Lookup("mkfs.ext4", "/", []string{systemPrograms})
	if errno != 0 {
		return errors.New("mkfs.ext4 (e2fsprogs) is not installed")
	}
	args := []string{"mkfs.ext4", "-q", "-F", "-m", "0", "-b", "4096", "-i", "8192", "-U", "clear",
		"-O", "^has_journal,^resize_inode,^metadata_csum",
		"-E", "lazy_itable_init=1,nodiscard,root_owner=0:0", path}
	err = run(mkfs, args)
	if space, ok := diskspace.At(path, true); err != nil && ok && space.NearlyFull() {
		err = fmt.Errorf("%w: %w", err, ipc.ErrShortage)
	}
	return err
}

// run runs a program of the host. Its error has the last line that it wrote.
func run(path string, args []string) error {
	r, w, err := os.Pipe()
	if err != nil {
		return err
	}
	defer r.Close()
	var p *os.Process
	_, err = initproc.Own(func() (int, error) {
		if p, err = os.StartProcess(path, args, &os.ProcAttr{Dir: "/", Env: []string{systemPrograms},
			Files: []*os.File{nil, w, w}}); err != nil {
			return 0, err
		}
		return p.Pid, nil
	})
	w.Close()
	if err != nil {
		return err
	}
	defer initproc.Disown(p.Pid)
	text, _, _ := bounded.Read(r, 4096)
	state, err := p.Wait()
	if err != nil {
		return err
	}
	if !state.Success() {
		lines := strings.Split(strings.TrimSpace(string(text)), "\n")
		return fmt.Errorf("%s: %s (%s)", args[0], lines[len(lines)-1], state)
	}
	return nil
}

func copyTemplate(out *os.File, template string) error {
	in, err := os.Open(template)
	if err != nil {
		return err
	}
	defer in.Close()
	_, sparse, err := disk.CopySparse(out, in, func(r io.Reader) io.Reader { return r })
	if err == nil && !sparse {
		err = errors.New("the file system of the slots' directory has no sparse files")
	}
	return err
}

const (
	loopConfigure = 0x4C0A // Linux 5.8
	loopGetFree   = 0x4C82
	loopAutoclear = 4

	configSize  = 304 // struct loop_config
	configFlags = 60  // the offset of info.lo_flags

	// attempts bounds how often another process may take the free device first.
	attempts = 64
)

// mountFile makes a mount of the file system in a file. It is in no mount namespace yet.
func mountFile(file *os.File) (*os.File, error) {
	control, err := os.OpenFile("/dev/loop-control", os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	defer control.Close()
	device, err := attach(control, file)
	if err != nil {
		return nil, fmt.Errorf("loop device: %w", err)
	}
	defer device.Close()
	mount, err := mountDetached(device.Name())
	if err != nil {
		return nil, fmt.Errorf("mount of ext4: %w", err)
	}
	return mount, nil
}

// attach returns a loop device of a file.
func attach(control, file *os.File) (*os.File, error) {
	var config [configSize]byte
	binary.NativeEndian.PutUint32(config[0:], uint32(file.Fd()))
	binary.NativeEndian.PutUint32(config[configFlags:], loopAutoclear)
	for attempt := 0; ; attempt++ {
		number, _, errno := syscall.Syscall(syscall.SYS_IOCTL, control.Fd(), loopGetFree, 0)
		if errno != 0 {
			return nil, errno
		}
		device, err := os.OpenFile(fmt.Sprint("/dev/loop", number), os.O_RDWR, 0)
		if err != nil {
			return nil, err
		}
		_, _, errno = syscall.Syscall(syscall.SYS_IOCTL, device.Fd(), loopConfigure,
			uintptr(unsafe.Pointer(&config[0])))
		if errno == 0 {
			return device, nil
		}
		device.Close()
		if errno != syscall.EBUSY || attempt == attempts {
			return nil, errno
		}
	}
}

// Numbers of system calls (Linux 5.2), the same on every architecture; package syscall lacks them.
const (
	sysFsopen   = 430
	sysFsconfig = 431
	sysFsmount  = 432

	fsCloexec       = 1
	fsSetFlag       = 0
	fsSetString     = 1
	fsCreate        = 6
	attrNosuidNodev = 2 | 4
)

func mountDetached(device string) (*os.File, error) {
	kind, err := syscall.BytePtrFromString("ext4")
	if err != nil {
		return nil, err
	}
	fd, _, errno := syscall.Syscall(sysFsopen, uintptr(unsafe.Pointer(kind)), fsCloexec, 0)
	if errno != 0 {
		return nil, errno
	}
	defer syscall.Close(int(fd))
	// Without barriers and a flush at each rename, because the file need not survive a crash.
	for _, option := range [][2]string{{"source", device}, {"nobarrier", ""}, {"noinit_itable", ""},
		{"noauto_da_alloc", ""}} {
		if err := configure(fd, option[0], option[1]); err != nil {
			return nil, err
		}
	}
	if _, _, errno := syscall.Syscall6(sysFsconfig, fd, fsCreate, 0, 0, 0, 0); errno != 0 {
		return nil, errno
	}
	mount, _, errno := syscall.Syscall(sysFsmount, fd, fsCloexec, attrNosuidNodev)
	if errno != 0 {
		return nil, errno
	}
	return os.NewFile(mount, "mount"), nil
}

func configure(fd uintptr, key, value string) error {
	k, err := syscall.BytePtrFromString(key)
	if err != nil {
		return err
	}
	if value == "" {
		if _, _, errno := syscall.Syscall6(sysFsconfig, fd, fsSetFlag, uintptr(unsafe.Pointer(k)), 0, 0,
			0); errno != 0 {
			return fmt.Errorf("%s: %w", key, errno)
		}
		return nil
	}
	v, err := syscall.BytePtrFromString(value)
	if err != nil {
		return err
	}
	if _, _, errno := syscall.Syscall6(sysFsconfig, fd, fsSetString, uintptr(unsafe.Pointer(k)),
		uintptr(unsafe.Pointer(v)), 0, 0); errno != 0 {
		return fmt.Errorf("%s: %w", key, errno)
	}
	return nil
}

func usedBytes(mount *os.File) (used int64) {
	conn, err := mount.SyscallConn()
	if err != nil {
		return 0
	}
	_ = conn.Control(func(fd uintptr) {
		var s syscall.Statfs_t
		if syscall.Fstatfs(int(fd), &s) == nil {
			used = int64(s.Blocks-s.Bfree) * s.Bsize
		}
	})
	return used
}
