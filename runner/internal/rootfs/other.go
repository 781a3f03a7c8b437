//go:build !linux

package rootfs

import "errors"

// ReadImage is unsupported on this system.
func ReadImage(string, []string, string) (*Image, error) { return nil, errors.ErrUnsupported }
