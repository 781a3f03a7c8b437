package rt

import "os"

// forgetPeak lowers the record of how much memory this process has had to what
// it has now: a child begins with its parent's. Only root may, for this process
// is not dumpable.
func forgetPeak() { _ = os.WriteFile("/proc/self/clear_refs", []byte("5"), 0) }
