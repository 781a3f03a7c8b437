package pipe

import (
	"context"
	"fmt"
	"net"
	"strconv"
	"time"

	"hermes-exec/runner/internal/ipc"
)

// Dial connects from here, which is inside the slot's network, and returns the
// descriptor.
func Dial(ctx context.Context, c ipc.Connect) (int, error) {
	if c.Port < 1 || c.Port > 65535 {
		return -1, &ipc.Error{Kind: "bad_request", Message: fmt.Sprintf("port %d", c.Port)}
	}
	timeout := time.Duration(c.TimeoutS * float64(time.Second))
	if timeout <= 0 {
		timeout = 30 * time.Second
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	var d net.Dialer
	conn, err := d.DialContext(ctx, "tcp", net.JoinHostPort(c.Host, strconv.Itoa(c.Port)))
	if err != nil {
		if ctx.Err() != nil {
			return -1, &ipc.Error{Kind: "os", Message: err.Error(), Errno: "ETIMEDOUT"}
		}
		e := ipc.AsError(err)
		if e.Kind != "os" {
			e = &ipc.Error{Kind: "os", Message: err.Error(), Errno: "EHOSTUNREACH"}
		}
		return -1, e
	}
	defer conn.Close()
	tcp, ok := conn.(*net.TCPConn)
	if !ok {
		return -1, &ipc.Error{Kind: "internal", Message: "not a TCP connection"}
	}
	raw, err := tcp.SyscallConn()
	if err != nil {
		return -1, err
	}
	fd := -1
	var dupErr error
	if err := raw.Control(func(from uintptr) { fd, dupErr = Duplicate(int(from)) }); err != nil {
		return -1, err
	}
	return fd, dupErr
}
