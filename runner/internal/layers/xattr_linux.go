package layers

import (
	"bytes"
	"errors"
	"strings"
	"syscall"
	"unsafe"
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
	return &xattrReader{wanted: wanted, names: make([]byte, maxXattr), value: make([]byte, maxXattr)}
}

// each calls do for the wanted attributes of an open file. The value is valid during the call.
func (x *xattrReader) each(fd int, do func(name string, value []byte) error) error {
	list := func() (int, error) {
		return count(syscall.Syscall(syscall.SYS_FLISTXATTR, uintptr(fd), uintptr(unsafe.Pointer(&x.names[0])),
			maxXattr))
	}
	get := func(name string) (int, error) {
		p, err := syscall.BytePtrFromString(name)
		if err != nil {
			return 0, err
		}
		return count(syscall.Syscall6(syscall.SYS_FGETXATTR, uintptr(fd), uintptr(unsafe.Pointer(p)),
			uintptr(unsafe.Pointer(&x.value[0])), maxXattr, 0, 0))
	}
	return x.read(list, get, do)
}

// eachOfHandle is each for an entry that is not open, but has a handle.
func (x *xattrReader) eachOfHandle(fd int, do func(name string, value []byte) error) error {
	path := handlePath(fd)
	list := func() (int, error) { return syscall.Listxattr(path, x.names) }
	get := func(name string) (int, error) { return syscall.Getxattr(path, name, x.value) }
	return x.read(list, get, do)
}

func (x *xattrReader) read(list func() (int, error), get func(name string) (int, error),
	do func(name string, value []byte) error) error {
	n, err := list()
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
		size, err := get(string(name))
		if err != nil {
			return err
		}
		if err := do(string(name), x.value[:size]); err != nil {
			return err
		}
	}
	return nil
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
	return result(syscall.Syscall6(syscall.SYS_FSETXATTR, uintptr(fd), uintptr(unsafe.Pointer(p)), uintptr(data),
		uintptr(len(value)), 0, 0))
}
