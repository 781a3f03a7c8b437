package gpus

import "io"

// claim always fails: no GPUs are found on this system.
func claim(string) io.Closer { return nil }
