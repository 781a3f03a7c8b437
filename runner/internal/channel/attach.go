package channel

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"syscall"
	"time"
)

// The first byte that `runner attach` sends, and the answers. With descriptors the serving runner
// uses them directly; otherwise the socket is the stream and attach copies.
const (
	offerFiles   = 'F'
	offerCopy    = 'C'
	replyAccept  = 'y'
	replyDecline = 'n'
)

const attachTimeout = 5 * time.Second

var errNoPeer = errors.New("attach: the other end of the stream is closed")

// Attach connects in and out to the runner that serves base, and returns when the stream has ended.
func Attach(base string, in, out *os.File) error {
	c, err := dial(base, in)
	if err != nil {
		return err
	}
	defer c.Close()
	accepted, err := offer(c, in, out)
	if err != nil {
		return err
	}
	if accepted {
		_, err = io.Copy(io.Discard, c)
		return err
	}
	return copyBoth(c, in, out)
}

// dial waits for a runner that is starting, as long as the stream has a peer.
func dial(base string, stream *os.File) (*net.UnixConn, error) {
	deadline := time.Now().Add(attachTimeout)
	for {
		var c *net.UnixConn
		err := withShortPath(socketPath(base), func(short string) (err error) {
			c, err = net.DialUnix("unix", nil, &net.UnixAddr{Name: short, Net: "unix"})
			return err
		})
		if err == nil {
			return c, nil
		}
		starting := errors.Is(err, syscall.ENOENT) || errors.Is(err, syscall.ECONNREFUSED) ||
			errors.Is(err, syscall.EAGAIN)
		if !starting || time.Now().After(deadline) {
			return nil, fmt.Errorf("attach: %w", err)
		}
		if isHungUp(stream) {
			return nil, errNoPeer
		}
		time.Sleep(2 * time.Millisecond)
	}
}

func offer(c *net.UnixConn, in, out *os.File) (accepted bool, err error) {
	if !isPollable(in) || !isPollable(out) {
		_, err := c.Write([]byte{offerCopy})
		return false, err
	}
	if _, _, err := c.WriteMsgUnix([]byte{offerFiles}, syscall.UnixRights(int(in.Fd()), int(out.Fd())),
		nil); err != nil {
		_, err := c.Write([]byte{offerCopy})
		return false, err
	}
	answer := make([]byte, 1)
	if _, err := io.ReadFull(c, answer); err != nil {
		return false, fmt.Errorf("attach: %w", err)
	}
	return answer[0] == replyAccept, nil
}

// isPollable reports whether a descriptor can be waited for: regular files cannot.
func isPollable(f *os.File) bool {
	info, err := f.Stat()
	return err == nil && info.Mode()&(os.ModeNamedPipe|os.ModeSocket|os.ModeCharDevice) != 0
}

func copyBoth(c *net.UnixConn, in, out *os.File) error {
	go func() {
		_, _ = io.Copy(c, in)
		_ = c.CloseWrite()
	}()
	_, err := io.Copy(out, c)
	return err
}

// receiveStream reads the offer of an attached process and returns the stream.
func receiveStream(attached *net.UnixConn) (conn, error) {
	first := make([]byte, 1)
	oob := make([]byte, syscall.CmsgSpace(4*8))
	n, oobn, _, _, err := attached.ReadMsgUnix(first, oob)
	if err != nil || n == 0 {
		return nil, errors.Join(err, io.ErrUnexpectedEOF)
	}
	files := parseFiles(oob[:oobn])
	if first[0] == offerFiles && len(files) == 2 {
		if _, err := attached.Write([]byte{replyAccept}); err == nil {
			return newFileConn(files[0], files[1], attached), nil
		}
	}
	for _, fd := range files {
		_ = syscall.Close(fd)
	}
	switch first[0] {
	case offerCopy:
		return attached, nil
	case offerFiles:
		_, err := attached.Write([]byte{replyDecline})
		return attached, err
	}
	return nil, fmt.Errorf("attach: unknown offer %q", first)
}

func parseFiles(oob []byte) []int {
	messages, err := syscall.ParseSocketControlMessage(oob)
	if err != nil {
		return nil
	}
	var all []int
	for i := range messages {
		fds, err := syscall.ParseUnixRights(&messages[i])
		if err != nil {
			continue
		}
		all = append(all, fds...)
	}
	for _, fd := range all {
		syscall.CloseOnExec(fd)
	}
	return all
}

// fileConn is a stream on two descriptors of another process. It ends with that process.
type fileConn struct {
	in, out *os.File
	attach  *net.UnixConn
	once    sync.Once
}

func newFileConn(in, out int, attached *net.UnixConn) *fileConn {
	_, _ = syscall.SetNonblock(in, true), syscall.SetNonblock(out, true)
	c := &fileConn{in: os.NewFile(uintptr(in), "stream-in"), out: os.NewFile(uintptr(out), "stream-out"),
		attach: attached}
	go func() {
		_, _ = io.Copy(io.Discard, attached)
		_ = c.Close()
	}()
	return c
}

func (c *fileConn) Read(p []byte) (int, error)  { return c.in.Read(p) }
func (c *fileConn) Write(p []byte) (int, error) { return c.out.Write(p) }

func (c *fileConn) Close() error {
	c.once.Do(func() {
		_ = c.in.Close()
		_ = c.out.Close()
		_ = c.attach.Close()
	})
	return nil
}
