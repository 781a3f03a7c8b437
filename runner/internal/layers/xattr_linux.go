package layers

import (
	"bytes"
	"errors"
	"strings"
	"syscall"
	"unsafe"

	"hermes-exec/runner/internal/openat"
)

const (
	maxXattr   = 64 << 10 // of the list of names and of each value
	aclPrefix  = "system.posix_acl_"
	capability = "security.capability"
)

// isCopied reports whether an attribute belongs to the tenant or to overlayfs. Others, such as
// security labels, come from the system.
func isCopied(name string) bool {
	return strings.HasPrefix(name, "user.") || strings.HasPrefix(name, aclPrefix) || name == capability
}

// xattrReader reads extended attributes.
type xattrReader struct {
	wanted func(name string) bool
	names  []byte
	value  []byte
}

func newXattrReader(wanted func(name string) bool) *xattrReader {
	const usual = 1 << 10 // the kernel clears as much memory as it may fill
	return &xattrReader{wanted: wanted, names: make([]byte, usual), value: make([]byte, usual)}
}

// each calls do for the wanted attributes of an open file. The value is valid during the call.
func (x *xattrReader) each(fd int, do func(name string, value []byte) error) error {
	list := func(buffer []byte) (int, error) {
		return openat.Count(syscall.Syscall(syscall.SYS_FLISTXATTR, uintptr(fd), uintptr(unsafe.Pointer(&buffer[0])),
			uintptr(len(buffer))))
	}
	get := func(name string, buffer []byte) (int, error) {
		p, err := syscall.BytePtrFromString(name)
		if err != nil {
			return 0, err
		}
		return openat.Count(syscall.Syscall6(syscall.SYS_FGETXATTR, uintptr(fd), uintptr(unsafe.Pointer(p)),
			uintptr(unsafe.Pointer(&buffer[0])), uintptr(len(buffer)), 0, 0))
	}
	return x.read(list, get, do)
}

// eachOfHandle is each for an entry that is not open, but has a handle.
func (x *xattrReader) eachOfHandle(fd int, do func(name string, value []byte) error) error {
	path := openat.HandlePath(fd)
	list := func(buffer []byte) (int, error) { return syscall.Listxattr(path, buffer) }
	get := func(name string, buffer []byte) (int, error) { return syscall.Getxattr(path, name, buffer) }
	return x.read(list, get, do)
}

func (x *xattrReader) read(list func([]byte) (int, error), get func(string, []byte) (int, error),
	do func(name string, value []byte) error) error {
	n, err := fill(&x.names, list)
	if errors.Is(err, syscall.ENOTSUP) {
		return nil
	}
	if err != nil {
		return err
	}
	for name := range bytes.SplitSeq(x.names[:n], []byte{0}) {
		if len(name) == 0 || !x.wanted(string(name)) {
			continue
		}
		size, err := fill(&x.value, func(buffer []byte) (int, error) { return get(string(name), buffer) })
		if err != nil {
			return err
		}
		if err := do(string(name), x.value[:size]); err != nil {
			return err
		}
	}
	return nil
}

// fill calls read, and again with the largest buffer if the buffer is too small.
func fill(buffer *[]byte, read func([]byte) (int, error)) (int, error) {
	n, err := read(*buffer)
	if errors.Is(err, syscall.ERANGE) && len(*buffer) < maxXattr {
		*buffer = make([]byte, maxXattr)
		return read(*buffer)
	}
	return n, err
}

func removeXattr(fd int, name string) error {
	p, err := syscall.BytePtrFromString(name)
	if err != nil {
		return err
	}
	return openat.Result(syscall.Syscall(syscall.SYS_FREMOVEXATTR, uintptr(fd), uintptr(unsafe.Pointer(p)), 0))
}

func setXattr(fd int, name string, value []byte) error {
	p, err := syscall.BytePtrFromString(name)
	if err != nil {
		return err
	}
	var data unsafe.Pointer
	if len(value) > 0 {
		data = unsafe.Pointer(&value[0])
	}
	return openat.Result(syscall.Syscall6(syscall.SYS_FSETXATTR, uintptr(fd), uintptr(unsafe.Pointer(p)), uintptr(data),
		uintptr(len(value)), 0, 0))
}
