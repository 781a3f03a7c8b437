package layers

import (
	"context"
	"syscall"

	"hermes-exec/runner/internal/openat"
)

// Measure counts the entries and bytes below a directory. Beyond the bound it stops with
// ErrTooLarge.
func Measure(dir string, bound Bound) (Size, error) {
	w := walk{ctx: context.Background(), op: "measure", bound: bound}
	err := w.run(dir, &measurer{size: &w.size, bound: bound, linked: map[fileID]struct{}{}})
	return w.size, err
}

// MeasureOwned counts what CopyOwned copies.
func MeasureOwned(dir string, owners Owners) (Size, error) {
	w := walk{ctx: context.Background(), op: "measure"}
	m := &measurer{size: &w.size, linked: map[fileID]struct{}{}, owners: &owners}
	w.skips = func(dir int, name string) (bool, error) {
		var st syscall.Stat_t
		err := openat.Stat(dir, name, &st)
		return !owners.apply(&st), err
	}
	err := w.run(dir, m)
	return w.size, err
}

type measurer struct {
	size   *Size
	bound  Bound
	linked map[fileID]struct{} // files with several names
	owners *Owners             // whose files count; nil: all
}

func (m *measurer) enter(*directory) error { return nil }
func (m *measurer) leave(*directory) error { return nil }

func (m *measurer) entry(dir int, name string) error {
	var st syscall.Stat_t
	if err := openat.Stat(dir, name, &st); err != nil {
		return err
	}
	if st.Mode&syscall.S_IFMT != syscall.S_IFREG || m.owners != nil && !m.owners.apply(&st) {
		return nil
	}
	if st.Nlink > 1 {
		if _, ok := m.linked[idOf(&st)]; ok {
			return nil
		}
		if len(m.linked) == maxLinked {
			return errTooMany
		}
		m.linked[idOf(&st)] = struct{}{}
	}
	const blockSize = 512
	if m.size.Bytes += min(st.Size, st.Blocks*blockSize); m.bound.isBelow(*m.size) {
		return ErrTooLarge
	}
	return nil
}
