package rootfs

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"hermes-exec/runner/internal/bounded"
	"hermes-exec/runner/internal/ipc"
)

// trialTimeout is how long files of an ended agent may stay open: those of the runner are closed
// beside the end.
const trialTimeout = 200 * time.Millisecond

// mountLayer mounts directory n of the image with the layers of the stack and the slot's own layer
// over it. lower is the directory of the sandbox. The process must be in the store.
func (v View) mountLayer(n int, lower, at string) error {
	names := v.lowers(n, lower)
	upper, work := v.Upper(n), filepath.Join(v.Layer, "work"+strconv.Itoa(n))
	for _, dir := range []string{upper, work} {
		if err := os.Mkdir(dir, 0o700); err != nil {
			return fmt.Errorf("view: %w", err)
		}
	}
	if err := copyTop(names[0], upper, lower); err != nil {
		return fmt.Errorf("view: %w", err)
	}
	return mount("overlay", at, "overlay", 0, overlayOptions(names, upper, work))
}

// lowers returns the directories below the slot's own changes to directory n of the image, the
// newest first. Names of layers are relative to the store: all options of a mount must fit a page.
func (v View) lowers(n int, image string) []string {
	var names []string
	for _, l := range slices.Backward(v.Stack) {
		if slices.Contains(l.Parts, n) {
			names = append(names, l.ID+"/"+strconv.Itoa(n))
		}
	}
	return append(names, image)
}

// overlayOptions returns the options of a layer. It is volatile because nothing of a slot outlives
// its processes, and an unmount would otherwise sync the whole disk.
func overlayOptions(lowers []string, upper, work string) string {
	escape := strings.NewReplacer(`\`, `\\`, ",", `\,`, ":", `\:`).Replace
	escaped := make([]string, len(lowers))
	for i, lower := range lowers {
		escaped[i] = escape(lower)
	}
	return "lowerdir=" + strings.Join(escaped, ":") + ",upperdir=" + escape(upper) + ",workdir=" + escape(work) +
		",userxattr,volatile"
}

// copyTop gives the directory to the attributes of from, which an overlay takes from its upper
// directory alone. original is the path for messages.
func copyTop(from, to, original string) error {
	var st syscall.Stat_t
	if err := syscall.Lstat(from, &st); err != nil {
		return pathError("stat", original, err)
	}
	if st.Uid != 0 || st.Gid != 0 {
		if err := giveTo(to, &st, original); err != nil {
			return err
		}
	}
	if err := syscall.Chmod(to, st.Mode&0o7777); err != nil {
		return pathError("chmod", to, err)
	}
	if err := copyAttributes(from, to); err != nil {
		return err
	}
	if err := syscall.UtimesNano(to, []syscall.Timespec{st.Atim, st.Mtim}); err != nil {
		return pathError("utimes", to, err)
	}
	return nil
}

// copyAttributes copies the extended attributes that a tenant can set, also the access control
// lists.
func copyAttributes(from, to string) error {
	attributes, err := tenantAttributes(from)
	if err != nil {
		return err
	}
	for name, value := range attributes {
		if err := syscall.Setxattr(to, name, []byte(value), 0); err != nil && !errors.Is(err, syscall.EOPNOTSUPP) {
			return pathError("setxattr "+name, to, err)
		}
	}
	return nil
}

// tenantAttributes returns the extended attributes of a directory that a tenant can set. Overlayfs
// has attributes of its own; it stores a tenant's with the same prefix under a longer one.
func tenantAttributes(path string) (map[string]string, error) {
	var buffer [4096]byte
	names := buffer[:]
	n, err := syscall.Listxattr(path, names)
	if errors.Is(err, syscall.ERANGE) {
		names = make([]byte, 64<<10)
		n, err = syscall.Listxattr(path, names)
	}
	if errors.Is(err, syscall.EOPNOTSUPP) || err == nil && n == 0 {
		return nil, nil
	}
	if err != nil {
		return nil, pathError("listxattr", path, err)
	}
	attributes := map[string]string{}
	for name := range strings.SplitSeq(strings.TrimSuffix(string(names[:n]), "\x00"), "\x00") {
		own := strings.HasPrefix(name, overlayPrefix) && !strings.HasPrefix(name, overlayPrefix+"overlay.")
		if own || !strings.HasPrefix(name, "user.") && !strings.HasPrefix(name, "system.posix_acl_") {
			continue
		}
		value := make([]byte, 64<<10)
		n, err := syscall.Getxattr(path, name, value)
		if err != nil {
			return nil, pathError("getxattr "+name, path, err)
		}
		attributes[name] = string(value[:n])
	}
	return attributes, nil
}

// overlayPrefix is the prefix of overlayfs's own attributes with the option userxattr.
const overlayPrefix = "user.overlay."

// proveClosed proves that nobody can write to the frozen directories any more: as long as a file of
// an overlay is open anywhere, its upper directory cannot be the upper directory of another overlay
// with an index. Where an index is impossible, a control mount succeeds instead of failing, or
// the trial itself fails. Without proof the error is ErrInUse.
func (v View) proveClosed() error {
	if len(v.Frozen) == 0 {
		return nil
	}
	trial := filepath.Join(v.Layer, "trial")
	for _, dir := range []string{trial, trial + "/lower", trial + "/at", trial + "/control"} {
		if err := os.Mkdir(dir, 0o700); err != nil {
			return fmt.Errorf("view: %w", err)
		}
	}
	until := time.Now().Add(trialTimeout)
	for i, upper := range v.Frozen {
		err := tryUpper(trial, "/at", upper, strconv.Itoa(i))
		for n := 0; errors.Is(err, syscall.EBUSY) && time.Now().Before(until); n++ {
			time.Sleep(time.Millisecond)
			err = tryUpper(trial, "/at", upper, strconv.Itoa(i)+"-"+strconv.Itoa(n))
		}
		if err != nil {
			return unproven(err)
		}
		if i == 0 {
			if err = tryUpper(trial, "/control", upper, "work"); err == nil {
				err = errors.Join(ErrInUse, syscall.Unmount(trial+"/control", 0))
			} else if errors.Is(err, syscall.EBUSY) {
				err = nil
			}
		}
		if err := errors.Join(err, syscall.Unmount(trial+"/at", 0)); err != nil {
			return unproven(err)
		}
	}
	return nil
}

// unproven is ErrInUse, unless the trial lacked memory or room.
func unproven(err error) error {
	if ipc.IsShortage(err) {
		return err
	}
	return fmt.Errorf("%w: %w", ErrInUse, err)
}

// tryUpper mounts an overlay with an index over an empty directory.
func tryUpper(trial, at, upper, work string) error {
	work = trial + "/" + work
	if err := os.Mkdir(work, 0o700); err != nil {
		return fmt.Errorf("view: %w", err)
	}
	return mount("overlay", trial+at, "overlay", 0, overlayOptions([]string{trial + "/lower"}, upper, work)+",index=on")
}

// checkMountPoint refuses a path with a link: a layer can hold one where the image has a directory.
func checkMountPoint(root, path string) error {
	at := root
	for name := range strings.SplitSeq(strings.Trim(path, "/"), "/") {
		at += "/" + name
		var st syscall.Stat_t
		if err := syscall.Lstat(at, &st); err != nil {
			return pathError("mount", path, err)
		}
		if st.Mode&syscall.S_IFMT == syscall.S_IFLNK {
			return pathError("mount", path, syscall.ELOOP)
		}
	}
	return nil
}

// makeMissing makes a directory of the slot where nothing exists, with its parents, for an owner.
// It follows no link of a tenant and leaves everything else as it is.
func makeMissing(path string, mode uint32, uid, gid int) error {
	at, made := "", false
	for name := range strings.SplitSeq(strings.Trim(path, "/"), "/") {
		at += "/" + name
		st, err := os.Lstat(at)
		if errors.Is(err, fs.ErrNotExist) {
			made, err = true, os.Mkdir(at, 0o755)
		} else if err == nil && !st.IsDir() {
			return nil
		}
		if err != nil {
			return fmt.Errorf("view: %w", err)
		}
	}
	if !made {
		return nil
	}
	if err := os.Lchown(path, uid, gid); err != nil {
		return fmt.Errorf("view: %w", err)
	}
	if err := syscall.Chmod(path, mode); err != nil {
		return pathError("chmod", path, err)
	}
	return nil
}

// FindChanges returns the numbers of the image's directories that the slot has changed above the layers
// of its stack. A directory is unchanged if its upper directory is empty and has the attributes of
// the topmost layer.
func (v View) FindChanges() ([]int, error) {
	var changed []int
	for n, lower := range append([]string{v.Image.Skeleton}, v.Image.Directories...) {
		top := v.lowers(n, lower)[0]
		if !filepath.IsAbs(top) {
			top = filepath.Join(v.Store, top)
		}
		is, err := differs(v.Upper(n), top)
		if err != nil {
			return nil, fmt.Errorf("view: %w", err)
		}
		if is {
			changed = append(changed, n)
		}
	}
	return changed, nil
}

// Upper returns the path of the slot's changes to directory n of the image.
func (v View) Upper(n int) string { return filepath.Join(v.Layer, "up"+strconv.Itoa(n)) }

func differs(upper, top string) (bool, error) {
	if n, err := bounded.Count(upper, 1); err != nil || n > 0 {
		return true, err
	}
	var a, b syscall.Stat_t
	if err := syscall.Lstat(upper, &a); err != nil {
		return false, pathError("stat", upper, err)
	}
	if err := syscall.Lstat(top, &b); err != nil {
		return false, pathError("stat", top, err)
	}
	if a.Mode != b.Mode || a.Uid != b.Uid || a.Gid != b.Gid || a.Mtim != b.Mtim {
		return true, nil
	}
	ours, err := tenantAttributes(upper)
	if err != nil {
		return false, err
	}
	theirs, err := tenantAttributes(top)
	return !maps.Equal(ours, theirs), err
}
