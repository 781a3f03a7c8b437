package output

import (
	"os"
	"sync"
)

// Sizes of spill files, in bytes.
const (
	MaxSpill     = 64 << 20
	MaxSlotSpill = 256 << 20
)

// writerSlots bounds the threads that can be stuck in a slow disk at once.
var writerSlots = make(chan struct{}, 8)

// Spills are the spill files of one slot.
type Spills struct {
	// Open creates a file in the slot and returns its path in the slot's view.
	Open func(name string) (file *os.File, path string, err error)
	// Remove deletes one of them.
	Remove func(path string)

	mu    sync.Mutex
	files []*spillFile // oldest first
}

type spillFile struct {
	spills *Spills
	path   string

	mu    sync.Mutex
	file  *os.File // nil if there is none, or after it was dropped
	size  int64
	gone  bool
	ended bool // its stream has ended
}

// create opens a file. If that fails, the result accepts writes and keeps nothing.
func (s *Spills) create(name string) *spillFile {
	f := &spillFile{spills: s}
	writerSlots <- struct{}{}
	file, path, err := s.Open(name)
	<-writerSlots
	if err != nil {
		f.gone = true
		return f
	}
	f.file, f.path = file, path
	s.mu.Lock()
	s.files = append(s.files, f)
	s.mu.Unlock()
	return f
}

// shrink drops files, except keep, while the slot has too many bytes: first the oldest of ended
// streams, then the oldest.
func (s *Spills) shrink(keep *spillFile) {
	s.mu.Lock()
	total := int64(0)
	for _, f := range s.files {
		size, _ := f.usage()
		total += size
	}
	var victims []*spillFile
	for _, living := range []bool{false, true} {
		for i := 0; total > MaxSlotSpill && i < len(s.files); {
			size, over := s.files[i].usage()
			if s.files[i] == keep || !over && !living {
				i++
				continue
			}
			total -= size
			victims = append(victims, s.files[i])
			s.files = append(s.files[:i], s.files[i+1:]...)
		}
	}
	s.mu.Unlock()
	for _, victim := range victims {
		victim.drop()
		s.Remove(victim.path)
	}
}

func (s *Spills) forget(f *spillFile) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i, have := range s.files {
		if have == f {
			s.files = append(s.files[:i], s.files[i+1:]...)
			return
		}
	}
}

func (f *spillFile) usage() (size int64, over bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.size, f.ended
}

func (f *spillFile) isOpen() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.file != nil
}

// end marks the stream as ended: its file is dropped before the files of open streams.
func (f *spillFile) end() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.ended = true
}

func (f *spillFile) drop() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.gone = true
	if f.file != nil {
		_ = f.file.Close()
		f.file = nil
	}
}

// write appends p as far as MaxSpill allows. A file that cannot take its bytes is removed, because
// half a stream would look like the whole.
func (f *spillFile) write(p []byte) {
	f.mu.Lock()
	room := MaxSpill - f.size
	if f.gone || f.file == nil || room <= 0 {
		f.mu.Unlock()
		return
	}
	p = p[:min(int64(len(p)), room)]
	f.size += int64(len(p))
	file := f.file
	f.mu.Unlock()
	f.spills.shrink(f)
	writerSlots <- struct{}{}
	_, err := file.Write(p)
	<-writerSlots
	if err != nil {
		f.remove()
	}
}

// remove gives up the file, unless that was done before.
func (f *spillFile) remove() {
	f.spills.forget(f)
	f.mu.Lock()
	removed := f.gone
	f.mu.Unlock()
	f.drop()
	if !removed {
		f.spills.Remove(f.path)
	}
}

// finish closes the file and returns its path, or "" if there is none.
func (f *spillFile) finish() string {
	if f == nil {
		return ""
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.ended = true
	if f.file != nil {
		_ = f.file.Close()
		f.file = nil
	}
	if f.gone {
		return ""
	}
	return f.path
}

// writeRing puts p at an offset of a file that holds the last MaxSpill bytes.
func (f *spillFile) writeRing(offset int64, p []byte) bool {
	f.mu.Lock()
	file := f.file
	grown := min(offset+int64(len(p)), MaxSpill) > f.size
	f.size = max(f.size, min(offset+int64(len(p)), MaxSpill))
	f.mu.Unlock()
	if file == nil {
		return false
	}
	if grown {
		f.spills.shrink(f)
	}
	for len(p) > 0 {
		at := offset % MaxSpill
		n := min(int64(len(p)), MaxSpill-at)
		writerSlots <- struct{}{}
		_, err := file.WriteAt(p[:n], at)
		<-writerSlots
		if err != nil {
			f.remove()
			return false
		}
		offset, p = offset+n, p[n:]
	}
	return true
}

func (f *spillFile) readRing(offset int64, p []byte) bool {
	f.mu.Lock()
	file := f.file
	f.mu.Unlock()
	if file == nil {
		return false
	}
	for len(p) > 0 {
		at := offset % MaxSpill
		n := min(int64(len(p)), MaxSpill-at)
		if _, err := file.ReadAt(p[:n], at); err != nil {
			return false
		}
		offset, p = offset+n, p[n:]
	}
	return true
}
