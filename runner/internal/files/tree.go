package files

import (
	"os"
	"path/filepath"

	"hermes-exec/runner/internal/archive"
	"hermes-exec/runner/internal/ipc"
	"hermes-exec/runner/internal/reach"
)

func getTree(r *request) (any, error) {
	var p struct {
		Path ipc.Bytes `json:"path"`
	}
	if err := r.decode(&p); err != nil {
		return nil, err
	}
	if r.out == nil {
		return nil, badRequest("file.get_tree needs a data stream")
	}
	full, err := r.resolve(p.Path)
	if err != nil {
		return nil, err
	}
	info, err := os.Stat(full)
	if err != nil {
		return nil, convert(full, err)
	}
	dir, name := full, ""
	if !info.IsDir() {
		if err := requireRegular(full, info); err != nil {
			return nil, err
		}
		if full, err = filepath.EvalSymlinks(full); err != nil {
			return nil, convert(full, err)
		}
		dir, name = filepath.Dir(full), filepath.Base(full)
	}
	root, err := reach.OpenRoot(dir)
	if err != nil {
		return nil, convert(dir, err)
	}
	defer root.Close()
	result, err := archive.Pack(r.ctx, root, name, r.out)
	if err != nil {
		return nil, convert(dir, err)
	}
	return result, nil
}

func putTree(r *request) (any, error) {
	var p struct {
		Path    ipc.Bytes `json:"path"`
		AnyLink bool      `json:"any_link"`
	}
	if err := r.decode(&p); err != nil {
		return nil, err
	}
	dir, err := r.resolve(p.Path)
	if err != nil {
		return nil, err
	}
	if _, err := makeParents(dir); err != nil {
		return nil, convert(dir, err)
	}
	root, err := reach.OpenRoot(dir)
	if err != nil {
		return nil, convert(dir, err)
	}
	defer root.Close()
	result, err := archive.Unpack(root, r.in, p.AnyLink)
	if err != nil {
		return nil, convert(dir, err)
	}
	return result, nil
}
