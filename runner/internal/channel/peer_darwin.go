package channel

import (
	"net"
	"os"
)

func watchPeer(*net.UnixConn) func() bool { return nil }

// isHungUp cannot tell here.
func isHungUp(*os.File) bool { return false }
