//go:build !linux

package rootfs

import "errors"

// ReadImage is for Linux.
func ReadImage(string, []string, string) (*Image, error) { return nil, errors.ErrUnsupported }
