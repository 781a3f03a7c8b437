package channel

import (
	"net"
	"os"
)

func processEnded(*net.UnixConn) func() bool { return nil }

// alone cannot tell here.
func alone(*os.File) bool { return false }
