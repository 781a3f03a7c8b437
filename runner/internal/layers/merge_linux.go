package layers

import (
	"bytes"
	"context"
	"errors"
	"io/fs"
	"syscall"

	"hermes-exec/runner/internal/openat"
	"hermes-exec/runner/internal/tree"
	"hermes-exec/runner/internal/wipe"
)

// opaqueXattr marks a directory that hides the directories of its name in lower layers.
const opaqueXattr = "user.overlay.opaque"

// mergeUppers makes the new directory `to`, which alone has the effect of several upper directories, the
// oldest first. After a failure nothing of `to` is left.
func mergeUppers(ctx context.Context, uppers []string, to string) error {
	if err := Copy(ctx, uppers[0], to, Bound{}); err != nil {
		return err
	}
	for _, upper := range uppers[1:] {
		if err := apply(ctx, upper, to); err != nil {
			_ = wipe.RemoveTree(to)
			return err
		}
	}
	return nil
}

// apply adds the changes of the upper directory `from` to the older upper directory `to`.
func apply(ctx context.Context, from, to string) error {
	a := &applier{copier: newCopier(ctx, Bound{})}
	defer func() {
		a.to.close()
		a.store.close()
	}()
	if err := a.to.start(to); err != nil {
		return &fs.PathError{Op: "open", Path: to, Err: err}
	}
	w := walk{ctx: ctx, op: "merge"}
	return w.run(from, a)
}

// applier is a copier to a directory with older entries.
type applier struct {
	*copier
	states []mergeState // of the directories of the walk
}

type mergeState struct {
	exists bool // in the older directory
	opaque bool // together
}

func (a *applier) enter(d *directory) error {
	if d.name == "" {
		a.states = append(a.states, mergeState{exists: true})
		return nil
	}
	state, err := a.prepare(d)
	if err != nil {
		return err
	}
	a.states = append(a.states, state)
	return a.to.push(d.name)
}

// prepare makes sure that there is a directory for the entries of d.
func (a *applier) prepare(d *directory) (mergeState, error) {
	at := a.to.last().fd
	opaque, err := a.isOpaque(d.fd)
	if err != nil {
		return mergeState{}, err
	}
	var st syscall.Stat_t
	err = openat.Stat(at, d.name, &st)
	switch {
	case errors.Is(err, syscall.ENOENT):
		return mergeState{opaque: opaque}, syscall.Mkdirat(at, d.name, 0o700)
	case err != nil:
		return mergeState{}, err
	case opaque || st.Mode&syscall.S_IFMT != syscall.S_IFDIR:
		// What hid the lower layers is gone: the new directory hides them.
		if err := removeAt(at, d.name); err != nil {
			return mergeState{}, err
		}
		return mergeState{opaque: true}, syscall.Mkdirat(at, d.name, 0o700)
	}
	fd, err := openat.Open(at, d.name, openat.DirFlags)
	if err != nil {
		return mergeState{}, err
	}
	defer syscall.Close(fd)
	opaque, err = a.isOpaque(fd)
	return mergeState{exists: true, opaque: opaque}, err
}

func (a *applier) isOpaque(fd int) (opaque bool, err error) {
	reader := newXattrReader(func(name string) bool { return name == opaqueXattr })
	err = reader.each(fd, func(_ string, value []byte) error {
		opaque = bytes.Equal(value, []byte("y"))
		return nil
	})
	return opaque, err
}

func (a *applier) entry(dir int, name string) error {
	if err := removeAt(a.to.last().fd, name); err != nil {
		return err
	}
	return a.copier.entry(dir, name)
}

// leave gives a directory the attributes of the newer one.
func (a *applier) leave(d *directory) error {
	last := len(a.states) - 1
	state, to := a.states[last], a.to.last().fd
	a.states = a.states[:last]
	if state.exists {
		var names []string
		err := a.xattrs.each(to, func(name string, _ []byte) error {
			names = append(names, name)
			return nil
		})
		if err != nil {
			return err
		}
		for _, name := range names {
			if err := removeXattr(to, name); err != nil {
				return err
			}
		}
	}
	if state.opaque {
		if err := setXattr(to, opaqueXattr, []byte("y")); err != nil {
			return err
		}
	}
	return a.copier.leave(d)
}

// removeAt removes an entry of an open directory, with everything in it, if it exists.
func removeAt(dir int, name string) error {
	var problem error
	remover := tree.Remover{Fail: func(_ string, err error) { problem = err }}
	if !remover.Remove(dir, name) {
		return problem
	}
	return nil
}
