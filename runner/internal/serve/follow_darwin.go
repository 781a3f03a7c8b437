package serve

import "net"

func processEnded(*net.UnixConn) func() bool { return nil }
