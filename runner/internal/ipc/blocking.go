package ipc

import (
	"io"
	"net"
	"syscall"
)

// blockingSocket is a socket whose reads and writes block the calling thread in the kernel. A
// locked thread wakes up sooner in this way than by the runtime's poller.
//
// Not the obvious code: see docs/why-not-obvious.md ("Waiting in the kernel").
type blockingSocket int

func retry(do func() (int, error)) (int, error) {
	for {
		if n, err := do(); err != syscall.EINTR {
			return max(n, 0), err
		}
	}
}

func (fd blockingSocket) ReadMsgUnix(p, oob []byte) (n, oobn, flags int, from *net.UnixAddr, err error) {
	n, err = retry(func() (got int, err error) {
		got, oobn, flags, _, err = syscall.Recvmsg(int(fd), p, oob, receiveFlags)
		return got, err
	})
	return n, oobn, flags, nil, err
}

func (fd blockingSocket) WriteMsgUnix(p, oob []byte, _ *net.UnixAddr) (n, oobn int, err error) {
	n, err = retry(func() (int, error) { return syscall.SendmsgN(int(fd), p, oob, nil, 0) })
	return n, len(oob), err
}

func (fd blockingSocket) Read(p []byte) (int, error) {
	n, err := retry(func() (int, error) { return syscall.Read(int(fd), p) })
	if n == 0 && err == nil && len(p) > 0 {
		return 0, io.EOF
	}
	return n, err
}

func (fd blockingSocket) Write(p []byte) (int, error) {
	sent := 0
	for sent < len(p) {
		n, _, err := fd.WriteMsgUnix(p[sent:], nil, nil)
		if err != nil {
			return sent, err
		}
		sent += n
	}
	return sent, nil
}

func (fd blockingSocket) Close() error { return syscall.Close(int(fd)) }
