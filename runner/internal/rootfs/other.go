//go:build !linux

package rootfs

import "errors"

// ReadImage is unsupported on this system.
func ReadImage(string, []string, string) (*Image, error) { return nil, errors.ErrUnsupported }

// FindChanges is unsupported on this system.
func (v View) FindChanges() ([]int, error) { return nil, errors.ErrUnsupported }

// Upper is unsupported on this system.
func (v View) Upper(int) string { return "" }
