//go:build !linux

package layers

import (
	"context"
	"errors"
)

// Measure is unsupported on this system.
func Measure(string, Bound) (Size, error) { return Size{}, errors.ErrUnsupported }

// Copy is unsupported on this system.
func Copy(context.Context, string, string, Bound) error { return errors.ErrUnsupported }
