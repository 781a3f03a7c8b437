//go:build !linux

package layers

import (
	"context"
	"errors"
	"io"
)

// IsSupported reports whether this system has the functions of this package.
const IsSupported = false

// Measure is unsupported on this system.
func Measure(string, Bound) (Size, error) { return Size{}, errors.ErrUnsupported }

// MeasureOwned is unsupported on this system.
func MeasureOwned(string, Owners) (Size, error) { return Size{}, errors.ErrUnsupported }

// Copy is unsupported on this system.
func Copy(context.Context, string, string, Bound) error { return errors.ErrUnsupported }

// CopyOwned is unsupported on this system.
func CopyOwned(context.Context, string, string, Owners) (Skipped, error) {
	return Skipped{}, errors.ErrUnsupported
}

func mergeUppers(context.Context, []string, string) error { return errors.ErrUnsupported }

// Pack is unsupported on this system.
func Pack(context.Context, string, *Owner, io.Writer) (Skipped, error) {
	return Skipped{}, errors.ErrUnsupported
}

// Unpack is unsupported on this system.
func Unpack(context.Context, io.Reader, string, Limits) error { return errors.ErrUnsupported }
