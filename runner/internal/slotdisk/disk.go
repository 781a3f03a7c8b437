package slotdisk

import (
	"fmt"
	"os"
	"path/filepath"
	"sync"
)

// Disk is a file system. It exists until Close, and until the last mount and file of it are gone.
type Disk struct {
	Mount *os.File // first in no mount namespace

	once  sync.Once
	freed chan struct{}
}

// Close gives up the file system. If its files were just written, the kernel may take a while to
// free it.
func (d *Disk) Close() {
	d.once.Do(func() {
		go func() {
			defer close(d.freed)
			_ = d.Mount.Close()
		}()
	})
}

// Wait closes the file system and waits until this has freed it.
func (d *Disk) Wait() {
	d.Close()
	<-d.freed
}

// UsedBytes returns how much is in use, or 0 after Close.
func (d *Disk) UsedBytes() int64 { return usedBytes(d.Mount) }

// Maker makes disks with their files in a directory of the runner.
type Maker struct {
	dir string

	mu        sync.Mutex
	templates map[int64]string // size in MiB → path of an empty file system
	next      int
}

// NewMaker returns a Maker. It makes dir with the first disk.
func NewMaker(dir string) *Maker { return &Maker{dir: dir, templates: map[int64]string{}} }

// Make makes a disk with a size in MiB.
func (m *Maker) Make(sizeMB int64) (*Disk, error) {
	template, file, err := m.prepare(sizeMB)
	if err != nil {
		return nil, fmt.Errorf("disk: %w", err)
	}
	defer file.Close()
	if err := copyTemplate(file, template); err != nil {
		return nil, fmt.Errorf("disk: %w", err)
	}
	mount, err := mountFile(file)
	if err != nil {
		return nil, fmt.Errorf("disk: %w", err)
	}
	return &Disk{Mount: mount, freed: make(chan struct{})}, nil
}

// prepare returns the template for a size and a new file without a name.
func (m *Maker) prepare(sizeMB int64) (template string, file *os.File, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := os.MkdirAll(m.dir, 0o700); err != nil {
		return "", nil, err
	}
	template, made := m.templates[sizeMB]
	if !made {
		template = filepath.Join(m.dir, fmt.Sprint("template-", sizeMB))
		if err := makeTemplate(template, sizeMB<<20); err != nil {
			_ = os.Remove(template)
			return "", nil, err
		}
		m.templates[sizeMB] = template
	}
	m.next++
	path := filepath.Join(m.dir, fmt.Sprint(m.next))
	if file, err = os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600); err != nil {
		return "", nil, err
	}
	if err := os.Remove(path); err != nil {
		file.Close()
		return "", nil, err
	}
	return template, file, nil
}
