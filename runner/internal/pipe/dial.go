package pipe

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"syscall"
	"time"

	"hermes-exec/runner/internal/ipc"
)

// Pauses between two attempts at a refused connection.
const (
	minPause = time.Millisecond
	maxPause = 50 * time.Millisecond
)

// Dial connects from the slot's network and returns the descriptor. It retries a refused connection
// for c.WaitS.
func Dial(ctx context.Context, c ipc.Connect) (int, error) {
	if c.Port < 1 || c.Port > 65535 {
		return -1, &ipc.Error{Kind: "bad_request", Message: fmt.Sprintf("port %d", c.Port)}
	}
	end := time.Now().Add(time.Duration(c.WaitS * float64(time.Second)))
	pause := minPause
	for {
		conn, err := dial(ctx, c)
		if err == nil {
			defer conn.Close()
			return descriptor(conn.(syscall.Conn))
		}
		left := time.Until(end)
		if !errors.Is(err, syscall.ECONNREFUSED) || left <= 0 {
			return -1, dialError(err)
		}
		select {
		case <-ctx.Done():
			return -1, ctx.Err()
		case <-time.After(min(pause, left)):
		}
		pause = min(2*pause, maxPause)
	}
}

// dial makes one attempt.
func dial(ctx context.Context, c ipc.Connect) (net.Conn, error) {
	timeout := time.Duration(c.TimeoutS * float64(time.Second))
	if timeout <= 0 {
		timeout = 30 * time.Second
	}
	d := net.Dialer{Timeout: timeout}
	return d.DialContext(ctx, "tcp", net.JoinHostPort(c.Host, strconv.Itoa(c.Port)))
}

func dialError(err error) *ipc.Error {
	var timed net.Error
	if errors.As(err, &timed) && timed.Timeout() {
		return &ipc.Error{Kind: "os", Message: err.Error(), Errno: "ETIMEDOUT"}
	}
	e := ipc.AsError(err)
	if e.Kind != "os" {
		e = &ipc.Error{Kind: "os", Message: err.Error(), Errno: "EHOSTUNREACH"}
	}
	return e
}

// descriptor returns a copy of a socket's descriptor.
func descriptor(socket syscall.Conn) (int, error) {
	raw, err := socket.SyscallConn()
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
