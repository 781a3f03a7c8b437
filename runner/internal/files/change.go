package files

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"hermes-exec/runner/internal/disk"
	"hermes-exec/runner/internal/ipc"
	"hermes-exec/runner/internal/node"
)

func makeDir(r *request) (any, error) {
	var p struct {
		Path    ipc.Bytes `json:"path"`
		Mode    *uint32   `json:"mode"`
		Parents bool      `json:"parents"`
		ExistOK bool      `json:"exist_ok"`
	}
	if err := r.decode(&p); err != nil {
		return nil, err
	}
	if err := checkMode(p.Mode); err != nil {
		return nil, err
	}
	path, err := r.resolve(p.Path)
	if err != nil {
		return nil, err
	}
	path = trimSlashes(path)
	if p.Parents {
		if _, err := makeParents(filepath.Dir(path)); err != nil {
			return nil, convert(path, err)
		}
	}
	err = os.Mkdir(path, newDirMode)
	if err != nil && p.ExistOK {
		if info, statErr := os.Stat(path); statErr == nil && info.IsDir() {
			return nil, nil
		}
	}
	if err == nil && p.Mode != nil {
		err = syscall.Chmod(path, *p.Mode)
	}
	return nil, convert(path, err)
}

// trimSlashes removes trailing slashes, with which the kernel would follow a link that the
// operation is about.
func trimSlashes(path string) string {
	if trimmed := strings.TrimRight(path, "/"); trimmed != "" {
		return trimmed
	}
	return "/"
}

func removePath(r *request) (any, error) {
	var p struct {
		Path      ipc.Bytes `json:"path"`
		Recursive bool      `json:"recursive"`
		MissingOK bool      `json:"missing_ok"`
	}
	if err := r.decode(&p); err != nil {
		return nil, err
	}
	path, err := r.resolve(p.Path)
	if err != nil {
		return nil, err
	}
	path = trimSlashes(path)
	info, err := os.Lstat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist) && p.MissingOK:
		return nil, nil
	case err != nil:
	case info.IsDir() && p.Recursive:
		err = removeTree(r.ctx, path)
	case info.IsDir():
		err = syscall.Rmdir(path)
	default:
		err = syscall.Unlink(path)
	}
	return nil, convert(path, err)
}

func chmodPath(r *request) (any, error) {
	var p struct {
		Path ipc.Bytes `json:"path"`
		Mode *uint32   `json:"mode"`
	}
	if err := r.decode(&p); err != nil {
		return nil, err
	}
	if p.Mode == nil {
		return nil, badRequest("file.chmod: mode is missing")
	}
	if err := checkMode(p.Mode); err != nil {
		return nil, err
	}
	path, err := r.resolve(p.Path)
	if err != nil {
		return nil, err
	}
	return nil, convert(path, syscall.Chmod(path, *p.Mode))
}

func movePath(r *request) (any, error) {
	var p struct {
		Source    ipc.Bytes `json:"source"`
		Target    ipc.Bytes `json:"target"`
		Overwrite bool      `json:"overwrite"`
	}
	if err := r.decode(&p); err != nil {
		return nil, err
	}
	source, target, err := r.resolvePair(p.Source, p.Target)
	if err != nil {
		return nil, err
	}
	if _, err := os.Lstat(source); err != nil {
		return nil, convert(source, err)
	}
	if p.Overwrite {
		err = os.Rename(source, target)
	} else {
		err = disk.RenameNoReplace(source, target)
	}
	if !isErrno(err, syscall.EXDEV) {
		return nil, convert(target, err)
	}
	if _, err := os.Lstat(target); err == nil && !p.Overwrite {
		return nil, convert(target, syscall.EEXIST)
	}
	return nil, moveAcross(r.ctx, source, target)
}

func (r *request) resolvePair(a, b ipc.Bytes) (source, target string, err error) {
	if source, err = r.resolve(a); err == nil {
		target, err = r.resolve(b)
	}
	return trimSlashes(source), trimSlashes(target), err
}

// moveAcross moves between file systems: it makes a whole copy beside the target, renames it, and
// then removes the source. If ctx ends after the rename, the removal still goes on: the move is
// done by then.
func moveAcross(ctx context.Context, source, target string) error {
	temp := filepath.Join(filepath.Dir(target), node.NewTempName())
	c := newCopier(ctx, filepath.Dir(target), true)
	err := c.copy(source, temp)
	if err == nil && len(c.skipped) > 0 {
		err = &ipc.Error{Kind: "os", Errno: "EXDEV", Path: ipc.Bytes(source),
			Message: "cannot be moved to another file system: " + c.skipped[0]}
	}
	if err == nil {
		err = convert(target, os.Rename(temp, target))
	}
	if err != nil {
		_ = removeTree(context.WithoutCancel(ctx), temp)
		return convert(target, err)
	}
	return convert(source, removeTree(context.WithoutCancel(ctx), source))
}
