package files

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"syscall"

	"hermes-exec/runner/internal/ipc"
	"hermes-exec/runner/internal/pipe"
	"hermes-exec/runner/internal/reach"
)

type readParams struct {
	Path   ipc.Bytes `json:"path"`
	Offset int64     `json:"offset"`
	Length *int64    `json:"length"`
	Limit  *int64    `json:"limit"`
}

type readResult struct {
	Size int64 `json:"size"`
	Read int64 `json:"read"`
}

// openRegular opens a regular file for reading and never blocks: a FIFO, socket or device is
// refused before the opening and again after it.
func openRegular(path string) (*os.File, os.FileInfo, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, nil, convert(path, err)
	}
	if err := requireRegular(path, info); err != nil {
		return nil, nil, err
	}
	file, err := reach.Open(path, syscall.O_RDONLY|syscall.O_NONBLOCK|syscall.O_NOCTTY, 0)
	if err != nil {
		return nil, nil, convert(path, err)
	}
	if info, err = file.Stat(); err == nil {
		err = requireRegular(path, info)
	}
	if err != nil {
		file.Close()
		return nil, nil, convert(path, err)
	}
	return file, info, nil
}

func requireRegular(path string, info os.FileInfo) error {
	switch {
	case info.IsDir():
		return convert(path, syscall.EISDIR)
	case !info.Mode().IsRegular():
		return newIrregularError(path, info.Mode())
	}
	return nil
}

func readFile(r *request) (ipc.FileResult, error) {
	var p readParams
	if err := r.decode(&p); err != nil {
		return ipc.FileResult{}, err
	}
	if p.Offset < 0 || (p.Length != nil && *p.Length < 0) || (p.Limit != nil && *p.Limit < 0) {
		return ipc.FileResult{}, badRequest("offset, length and limit must not be negative")
	}
	path, err := r.resolve(p.Path)
	if err != nil {
		return ipc.FileResult{}, err
	}
	file, info, err := openRegular(path)
	if err != nil {
		return ipc.FileResult{}, err
	}
	defer file.Close()
	if p.Offset > 0 {
		if _, err := file.Seek(p.Offset, io.SeekStart); err != nil {
			return ipc.FileResult{}, convert(path, err)
		}
	}
	inline := r.out == nil
	if err := p.check(info.Size(), inline); err != nil {
		return answerTooLarge(err)
	}
	if inline {
		return p.readInline(path, file, info.Size())
	}
	n, err := p.copy(r.out, file)
	if err != nil {
		return ipc.FileResult{}, convert(path, err)
	}
	return result(readResult{Size: max(info.Size(), p.Offset+n), Read: n}, nil)
}

var errInlineTooLarge = errors.New("over the inline limit")

func answerTooLarge(err error) (ipc.FileResult, error) {
	if errors.Is(err, errInlineTooLarge) {
		return ipc.FileResult{TooLarge: true}, nil
	}
	return ipc.FileResult{}, err
}

// check compares the size of the file with the limits, before a byte is sent.
func (p *readParams) check(size int64, inline bool) error {
	want := max(0, size-p.Offset)
	if p.Length != nil {
		want = min(want, *p.Length)
	}
	if p.Limit != nil && want > *p.Limit {
		return p.tooLarge(size)
	}
	if inline && want > ipc.InlineLimit {
		return errInlineTooLarge
	}
	return nil
}

func (p *readParams) tooLarge(size int64) error {
	return &ipc.Error{Kind: "too_large", Path: p.Path,
		Message: fmt.Sprintf("%d bytes from offset %d are over the limit of %d bytes", size-p.Offset, p.Offset,
			*p.Limit)}
}

// copy sends the bytes. It checks the limit again, because the size of a growing file or of a file
// in /proc is known at its end only.
func (p *readParams) copy(out io.Writer, file io.Reader) (int64, error) {
	if p.Length != nil {
		file = io.LimitReader(file, *p.Length)
	}
	if p.Limit == nil {
		return io.CopyBuffer(pipe.OnlyWriter{Writer: out}, pipe.OnlyReader{Reader: file}, make([]byte, 128<<10))
	}
	limited := pipe.OnlyReader{Reader: io.LimitReader(file, *p.Limit)}
	n, err := io.CopyBuffer(pipe.OnlyWriter{Writer: out}, limited, make([]byte, 128<<10))
	if err == nil && n == *p.Limit {
		var more [1]byte
		if k, _ := file.Read(more[:]); k > 0 {
			return n, p.tooLarge(p.Offset + n + 1)
		}
	}
	return n, err
}

func (p *readParams) readInline(path string, file io.Reader, size int64) (ipc.FileResult, error) {
	buffer := &inlineBuffer{}
	n, err := p.copy(buffer, file)
	if err != nil {
		if errors.Is(err, errInlineTooLarge) {
			return ipc.FileResult{TooLarge: true}, nil
		}
		return ipc.FileResult{}, convert(path, err)
	}
	return result(readResult{Size: max(size, p.Offset+n), Read: n}, buffer.data)
}

func result(value any, inline []byte) (ipc.FileResult, error) {
	raw, err := json.Marshal(value)
	if err != nil {
		return ipc.FileResult{}, &ipc.Error{Kind: "internal", Message: err.Error()}
	}
	return ipc.FileResult{Result: raw, Inline: inline}, nil
}

// inlineBuffer keeps at most ipc.InlineLimit bytes.
type inlineBuffer struct{ data []byte }

func (s *inlineBuffer) Write(p []byte) (int, error) {
	if len(s.data)+len(p) > ipc.InlineLimit {
		return 0, errInlineTooLarge
	}
	s.data = append(s.data, p...)
	return len(p), nil
}
