package files

import "os"

// replacement is a file that is to take the place of another one.
type replacement struct{ file *os.File }

func (r *replacement) Write(data []byte) (int, error) { return r.file.Write(data) }
