package link

import (
	"os"
	"path/filepath"
	"syscall"
)

// FIFOs is the directory of the FIFOs to which a slot's shells write their state. If the slot has a
// uid of its own, the directory is not the slot's, so that the slot cannot remove its entries.
type FIFOs struct {
	Dir    string
	Inside string // the path in the slot
}

// Make makes an empty directory.
func (f FIFOs) Make() error {
	if err := os.RemoveAll(f.Dir); err != nil {
		return err
	}
	if err := os.Mkdir(f.Dir, 0o711); err != nil {
		return err
	}
	return os.Chmod(f.Dir, 0o711)
}

// FIFO makes a FIFO for commands of the slot to write to, and opens it for reading without waiting.
// inside is its path in the slot. It exists until remove is called, or until the next reset.
func (h *Agent) FIFO(name string) (fd int, inside string, remove func(), err error) {
	fifos, setup := h.config.FIFOs, h.config.Setup
	path := filepath.Join(fifos.Dir, name)
	_ = os.Remove(path)
	err = syscall.Mkfifo(path, 0o600)
	if err == syscall.ENOENT && fifos.Make() == nil {
		// The tenant has removed the directory, where all have the same user.
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
		// Also for writing: a FIFO without a writer is at its end.
		fd, err = syscall.Open(path, syscall.O_RDWR|syscall.O_NONBLOCK|syscall.O_NOFOLLOW|syscall.O_CLOEXEC, 0)
	}
	if err != nil {
		remove()
		return -1, "", nil, err
	}
	return fd, filepath.Join(fifos.Inside, name), remove, nil
}
