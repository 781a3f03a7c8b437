package isolation

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"hermes-exec/runner/internal/bounded"
	"hermes-exec/runner/internal/proc"
	"hermes-exec/runner/internal/rights"
	"hermes-exec/runner/internal/seccomp"
)

// What an OCI runtime hides of /proc and /sys, and shows read-only.
var (
	maskedPaths = []string{"/proc/asound", "/proc/acpi", "/proc/kcore", "/proc/keys", "/proc/latency_stats",
		"/proc/timer_list", "/proc/timer_stats", "/proc/sched_debug", "/proc/scsi", "/proc/interrupts",
		"/sys/firmware", "/sys/devices/virtual/powercap"}
	readOnlyProc = []string{"/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"}
)

// enterOwn makes the image the root of this process, with a layer of the slot's
// own over each of its folders, or without a layer the image itself. Before the new root is entered nothing is
// looked up in it but the folders of the skeleton, which are no links.
func (v View) enterOwn() (lastPID *os.File, err error) {
	if v.Layer == "" {
		if lastPID, err = v.ownProc(); err != nil {
			return nil, err
		}
		return lastPID, v.ownSys("")
	}
	root := v.Staging
	if err := v.lay(0, v.Image.Skeleton, root); err != nil {
		return nil, err
	}
	for i, folder := range v.Image.Folders {
		if err := v.lay(i+1, folder, root+folder); err != nil {
			return nil, err
		}
	}
	box, err := handle("/")
	if err != nil {
		return nil, err
	}
	defer box.Close()
	if err := os.Chdir(root); err != nil {
		return nil, fmt.Errorf("view: %w", err)
	}
	if err := syscall.PivotRoot(".", "."); err != nil {
		return nil, fmt.Errorf("pivot_root: %w", err)
	}
	// The box's root lies over the slot's until it is left; paths that begin with "/" are the slot's.
	if lastPID, err = v.furnish(sourceOf(box)); err != nil {
		return nil, err
	}
	if err := syscall.Unmount(".", syscall.MNT_DETACH); err != nil {
		return nil, fmt.Errorf("leave the old root: %w", err)
	}
	return lastPID, os.Chdir("/")
}

// lay mounts a folder of the box with layer n of the slot over it.
func (v View) lay(n int, lower, at string) error {
	var st syscall.Stat_t
	if err := syscall.Lstat(lower, &st); err != nil {
		return pathError("stat", lower, err)
	}
	upper, work := filepath.Join(v.Layer, "up"+strconv.Itoa(n)), filepath.Join(v.Layer, "work"+strconv.Itoa(n))
	for _, dir := range []string{upper, work} {
		if err := os.Mkdir(dir, 0o700); err != nil {
			return fmt.Errorf("view: %w", err)
		}
	}
	if st.Uid != 0 || st.Gid != 0 {
		if err := os.Lchown(upper, int(st.Uid), int(st.Gid)); err != nil {
			return fmt.Errorf("view: %w", err)
		}
	}
	if err := syscall.Chmod(upper, st.Mode&0o7777); err != nil {
		return pathError("chmod", upper, err)
	}
	return mount("overlay", at, "overlay", 0, overlayOptions(lower, upper, work))
}

// overlayOptions: volatile, for nothing of a slot outlives its processes, and
// an unmount would else sync the whole disk.
func overlayOptions(lower, upper, work string) string {
	escape := strings.NewReplacer(`\`, `\\`, ",", `\,`, ":", `\:`).Replace
	return "lowerdir=" + escape(lower) + ",upperdir=" + escape(upper) + ",workdir=" + escape(work) +
		",userxattr,volatile"
}

// furnish mounts what is not of the image; box is a path to the box's root.
func (v View) furnish(box string) (lastPID *os.File, err error) {
	if lastPID, err = v.ownProc(); err != nil {
		return nil, err
	}
	for _, step := range []func(string) error{v.ownSys, v.ownDev, v.ownMounts} {
		if err := step(box); err != nil {
			return nil, err
		}
	}
	return lastPID, nil
}

// ReserveFirst gives the next process of this pid namespace the number
// seccomp.FirstPID: those below are this process and its threads, all of which
// are there. lastPID is what Enter has given.
func ReserveFirst(lastPID *os.File) error {
	_, err := lastPID.WriteString(strconv.Itoa(seccomp.FirstPID - 1))
	if err := errors.Join(err, lastPID.Close()); err != nil {
		return fmt.Errorf("numbers of processes: %w", err)
	}
	return nil
}

// ownProc also opens what sets the number of the last process, before the
// settings of the kernel become read-only.
func (v View) ownProc() (lastPID *os.File, err error) {
	if err := mount("proc", "/proc", "proc", msNosuidNodev|syscall.MS_NOEXEC, ""); err != nil {
		return nil, err
	}
	if lastPID, err = os.OpenFile("/proc/sys/kernel/ns_last_pid", os.O_WRONLY, 0); err != nil {
		return nil, fmt.Errorf("view: %w", err)
	}
	if v.MostPIDs > 0 {
		most := strconv.FormatInt(v.MostPIDs+seccomp.FirstPID, 10)
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

func (v View) ownSys(box string) error {
	if err := placeDir("/sys"); err != nil {
		return err
	}
	if err := bind(box+"/sys", "/sys", true, attrNosuid|attrNodev|attrNoexec); err != nil {
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
			err = bind(box+"/dev/null", path, false, 0)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (v View) ownDev(box string) error {
	if err := mount("tmpfs", "/dev", "tmpfs", syscall.MS_NOSUID, "mode=0755,size=64k"); err != nil {
		return err
	}
	for _, path := range v.Image.Devices {
		if err := placeFile(path); err != nil {
			return err
		}
		if err := bind(box+path, path, false, 0); err != nil {
			return err
		}
	}
	return deviceLinks("/dev", v.Image.ShmSize)
}

// ownMounts are file systems in memory that the box has, folders that it shares
// or nobody may write to, and what the slot has of the runner's.
func (v View) ownMounts(box string) error {
	for _, m := range v.Image.Memory {
		if err := placeDir(m.Path); err != nil {
			return err
		}
		if err := mount("tmpfs", m.Path, "tmpfs", uintptr(m.Flags), m.Options); err != nil {
			return err
		}
	}
	for _, path := range slices.Concat(v.Image.Shared, v.Image.ReadOnly) {
		if err := bind(box+path, path, slices.Contains(v.Image.ReadOnly, path), 0); err != nil {
			return err
		}
	}
	// Nothing of the tenant's has run yet: these paths are the image's.
	if _, err := os.Stat("/tmp"); err != nil {
		if err := placeDir("/tmp"); err != nil {
			return err
		}
		if err := os.Chmod("/tmp", 0o777|os.ModeSticky); err != nil {
			return err
		}
	}
	if err := placeDir(v.Workspace); err != nil {
		return err
	}
	if err := os.Chown(v.Workspace, int(v.Owner.UID), int(v.Owner.GID)); err != nil {
		return fmt.Errorf("view: %w", err)
	}
	for _, b := range v.Binds {
		if err := placeDir(b.Target); err != nil {
			return err
		}
		if err := bind(box+b.Source, b.Target, b.ReadOnly, attrNosuid|attrNodev|attrNoexec); err != nil {
			return err
		}
	}
	return nil
}

// ThreadNotInProc gives the calling thread a mount namespace of its own in
// which /proc does not show this process, whose memory and descriptors are open
// to its own threads, and links in /proc lead nowhere. Commands are to be
// started by others.
func ThreadNotInProc() error {
	if err := syscall.Unshare(syscall.CLONE_NEWNS); err != nil {
		return fmt.Errorf("mount namespace of a thread: %w", err)
	}
	if err := mountSetattr("/proc", attrNoSymFollow, true); err != nil {
		return pathError("mount options", "/proc", err)
	}
	self := fmt.Sprintf("/proc/%d", os.Getpid())
	return mount("tmpfs", self, "tmpfs", msNosuidNodev|syscall.MS_NOEXEC|syscall.MS_RDONLY, "mode=555,nr_inodes=2")
}

// OwnRootArg makes `runner agent OwnRootArg FOLDER` try, in namespaces of its
// own, whether a slot can have a root of its own with FOLDER for its layer.
const OwnRootArg = "--own-root"

// TryOwnRoot says why no slot can have a root of its own, nil if it can. folder
// is an empty one where slots are to be kept.
func TryOwnRoot(f Facts, folder string) error {
	switch {
	case !f.Root:
		return errors.New("the runner is not root")
	case !f.Switch:
		return errors.New(f.Reasons[UID])
	case f.Caps&(1<<rights.CapSetfcap) == 0:
		return errors.New("root without CAP_SETFCAP")
	}
	for _, part := range []string{"lower", "layer", "root"} {
		if err := os.Mkdir(filepath.Join(folder, part), 0o755); err != nil {
			return err
		}
	}
	_, err := tryIn(WayIdentity, f.IDs.middle(), OwnRootArg, folder)
	if err == nil {
		return nil
	}
	if hint := namespaceHint(err); hint != "" {
		return fmt.Errorf("%w (%s)", err, hint)
	}
	return err
}

// namespaceHint says what to set where a user namespace or a mount in it was
// refused, as far as the settings of this kernel tell.
func namespaceHint(err error) string {
	setting := func(path string) string {
		text, _ := bounded.ReadWhole(path, bounded.Setting)
		return strings.Trim(string(text), "\x00\n ")
	}
	profile := setting("/proc/self/attr/current")
	switch {
	case strings.HasSuffix(profile, "(enforce)"):
		return "the box's AppArmor profile " + profile + " may refuse it: start the box with apparmor=unconfined"
	case setting("/proc/sys/kernel/apparmor_restrict_unprivileged_userns") == "1":
		return "the host's sysctl kernel.apparmor_restrict_unprivileged_userns=1 refuses it: set it to 0"
	case setting("/proc/sys/user/max_user_namespaces") == "0":
		return "the host's sysctl user.max_user_namespaces=0 refuses it: raise it"
	case setting("/proc/sys/kernel/unprivileged_userns_clone") == "0":
		return "the host's sysctl kernel.unprivileged_userns_clone=0 refuses it: set it to 1"
	case strings.Contains(err.Error(), syscall.EINVAL.Error()):
		return "a third overlay over two, as in a container within a container, is one too many: keep the inner " +
			"engine's data in a volume"
	case errors.Is(err, syscall.EPERM):
		return "the box's seccomp profile refuses user namespaces, or this kernel does"
	}
	return ""
}

func tryOwnRoot(folder string) error {
	image := Image{Skeleton: filepath.Join(folder, "lower"), ShmSize: sharedMemory, Folders: folderOfRoot()}
	for _, name := range append([]string{"/proc", "/sys", "/dev"}, image.Folders...) {
		if err := os.Mkdir(image.Skeleton+name, 0o755); err != nil {
			return err
		}
	}
	v := View{Kind: ViewOwn, Staging: filepath.Join(folder, "root"), Layer: filepath.Join(folder, "layer"),
		Image: &image, Network: true, Workspace: "/workspace"}
	lastPID, err := v.Enter()
	if err != nil {
		return err
	}
	if err := ReserveFirst(lastPID); err != nil {
		return err
	}
	return ThreadNotInProc()
}

// folderOfRoot is a folder of the root's own file system with no mounts in it, on
// which a layer has to be possible; none where there is none.
func folderOfRoot() []string {
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

// ReadImage finds out how slots see this box, whose folders are to stay as they
// are from now on. home is the runner's own folder; folder is for copies of what
// cannot have a layer over it. Slots write to the folders in shared themselves.
func ReadImage(home string, shared []string, folder string) (*Image, error) {
	mounts, err := mountsByPath()
	if err != nil {
		return nil, err
	}
	r := imageReader{home: home, mounts: mounts, image: Image{Skeleton: folder, ShmSize: sharedMemory}}
	for _, path := range shared {
		real, err := filepath.EvalSymlinks(filepath.Clean(path))
		if err != nil {
			return nil, err
		}
		if _, mounted := mounts[real]; !mounted {
			return nil, fmt.Errorf("nothing is mounted at %s, which is to be shared", path)
		}
		r.shared = append(r.shared, real)
	}
	for option := range strings.SplitSeq(mounts["/dev/shm"].Super, ",") {
		if size, ok := strings.CutPrefix(option, "size="); ok {
			r.image.ShmSize = size
		}
	}
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return nil, err
	}
	if err := r.split("/", false); err != nil {
		return nil, fmt.Errorf("the box's folders cannot be read: %w", err)
	}
	for _, path := range r.shared {
		if !slices.Contains(r.image.Shared, path) {
			return nil, fmt.Errorf("%s cannot be shared: of what is around it each slot has its own", path)
		}
	}
	for _, dir := range []string{"/proc", "/sys", "/dev"} {
		if err := os.MkdirAll(folder+dir, 0o755); err != nil {
			return nil, err
		}
	}
	if err := r.devices("/dev"); err != nil {
		return nil, err
	}
	return &r.image, nil
}

// What a small folder holds at most.
const smallEntries, smallBytes = 16, 64 << 10

var errNotSmall = errors.New("not small")

type imageReader struct {
	home   string
	shared []string
	mounts map[string]proc.Mount
	image  Image
}

// split places a folder in the skeleton because others are mounted on it, or
// because it is the root. whole copies its folders too.
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
			err = r.folder(at, &st, whole)
		case kind == syscall.S_IFLNK:
			err = r.link(at, &st)
		case mounted && (kind != syscall.S_IFREG || slices.Contains(r.shared, at)):
			r.image.Shared = append(r.image.Shared, at) // a socket or a device is itself whoever opens it
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

func (r *imageReader) folder(path string, st *syscall.Stat_t, whole bool) error {
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
	case !mounted && (whole || small(path)):
		err = r.split(path, true)
	default:
		r.image.Folders = append(r.image.Folders, path)
	}
	return errors.Join(err, r.asIn(path, st)) // what was put into it has changed its time
}

// small says that a folder holds so little that a copy costs less than a layer.
func small(path string) bool {
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
				return errNotSmall // a copy would have neither capabilities nor other names
			}
		} else if !info.IsDir() && info.Mode()&fs.ModeSymlink == 0 {
			return errNotSmall // a device, FIFO or socket, which no copy is made of
		}
		if entries > smallEntries || bytes > smallBytes {
			return errNotSmall
		}
		return nil
	}) == nil
}

// mountsByPath are the mounts of this box; of several at one path the last,
// which covers the others.
func mountsByPath() (map[string]proc.Mount, error) {
	table, err := proc.Mounts()
	mounts := map[string]proc.Mount{}
	for _, m := range table {
		mounts[m.Path] = m
	}
	return mounts, err
}

// holdsMounts says that something is mounted below a folder.
func holdsMounts(mounts map[string]proc.Mount, path string) bool {
	for at := range mounts {
		if at != path && inside(at, path) {
			return true
		}
	}
	return false
}

// asIn gives what was made in the skeleton owner and mode of its original.
func (r *imageReader) asIn(path string, st *syscall.Stat_t) error {
	at := r.image.Skeleton + path
	if err := os.Lchown(at, int(st.Uid), int(st.Gid)); err != nil {
		return err
	}
	if st.Mode&syscall.S_IFMT == syscall.S_IFLNK {
		return nil
	}
	if err := syscall.Chmod(at, st.Mode&0o7777); err != nil {
		return pathError("chmod", at, err)
	}
	return syscall.UtimesNano(at, []syscall.Timespec{st.Atim, st.Mtim})
}

func (r *imageReader) link(path string, st *syscall.Stat_t) error {
	to, err := os.Readlink(path)
	if err != nil {
		return err
	}
	if err := os.Symlink(to, r.image.Skeleton+path); err != nil {
		return err
	}
	return r.asIn(path, st)
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
	return r.asIn(path, st)
}

// devices finds the box's device nodes.
func (r *imageReader) devices(dir string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		at := filepath.Join(dir, e.Name())
		info, err := os.Lstat(at) // the entry alone does not tell what is mounted on it
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
