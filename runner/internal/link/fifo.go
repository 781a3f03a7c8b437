package link

import (
	"os"
	"path/filepath"
	"syscall"
)

// FIFOs is the directory of the FIFOs that a slot's shells write their state to.
// It is not the slot's own, where the slot has a user id of its own: what is in
// it cannot be removed there.
type FIFOs struct {
	Dir    string
	Inside string // where the slot sees it
}

// Make makes it afresh.
func (f FIFOs) Make() error {
	if err := os.RemoveAll(f.Dir); err != nil {
		return err
	}
	if err := os.Mkdir(f.Dir, 0o711); err != nil {
		return err
	}
	return os.Chmod(f.Dir, 0o711)
}

// FIFO makes a FIFO for commands of the slot to write to, and opens it for
// reading without waiting. inside is its path in the slot. It is gone when
// remove was called, or with the next reset.
func (h *Agent) FIFO(name string) (fd int, inside string, remove func(), err error) {
	fifos, setup := h.config.FIFOs, h.config.Setup
	path := filepath.Join(fifos.Dir, name)
	_ = os.Remove(path)
	err = syscall.Mkfifo(path, 0o600)
	if err == syscall.ENOENT && fifos.Make() == nil {
		// The tenant has removed it, where there is one user only.
		err = syscall.Mkfifo(path, 0o600)
	}
	if err != nil {
		return -1, "", nil, err
	}
	remove = func() { _ = os.Remove(path) }
	if setup.Switch {
		err = os.Lchown(path, int(setup.UID), int(setup.GID))
	}
	if err == nil {
		// For writing too: without a writer it would be at its end.
		fd, err = syscall.Open(path, syscall.O_RDWR|syscall.O_NONBLOCK|syscall.O_NOFOLLOW|syscall.O_CLOEXEC, 0)
	}
	if err != nil {
		remove()
		return -1, "", nil, err
	}
	return fd, filepath.Join(fifos.Inside, name), remove, nil
}
