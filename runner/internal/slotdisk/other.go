//go:build !linux

package slotdisk

import (
	"errors"
	"os"
)

func makeTemplate(string, int64) error { return errors.ErrUnsupported }

func copyTemplate(*os.File, string) error { return errors.ErrUnsupported }

func usedBytes(*os.File) int64 { return 0 }

func mountFile(*os.File) (*os.File, error) { return nil, errors.ErrUnsupported }
