package disk

import (
	"io"
	"os"
)

// ContentWriter is where the contents of a new file are written to.
func ContentWriter(file *os.File, _ bool) io.Writer { return struct{ io.Writer }{file} }

// Reserve does nothing here.
func Reserve(*os.File, int64) error { return nil }
