package files

import (
	"io"
	"os"
)

// contentsOf is where the contents of a new file are written to.
func contentsOf(file *os.File, _ bool) io.Writer { return onlyWriter{file} }

// reserve cannot be had here.
func reserve(*os.File, int64) error { return nil }
