package ipc

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

const (
	headerSize = 16
	// maxBody bounds one message; a command of several MiB must fit.
	maxBody = 48 << 20
	maxFDs  = 16
)

// kind is the kind of a message.
type kind uint8

const (
	kindRequest kind = 1
	kindReply   kind = 2
	kindEvent   kind = 3
	kindCancel  kind = 4 // the caller no longer wants the reply of this sequence
)

// Message is a received message. The body is JSON or packed; the receiver owns FDs.
type Message struct {
	seq    uint64
	kind   kind
	op     string
	failed bool // a reply whose body is an Error
	Body   json.RawMessage
	FDs    []int
}

// CloseFDs closes the descriptors of the message.
func (m *Message) CloseFDs() {
	for _, fd := range m.FDs {
		_ = syscall.Close(fd)
	}
	m.FDs = nil
}

// Error is a failure that the other end reports. Kind is a kind of the wire protocol
// (docs/protocol.md), Errno the name of the system error.
type Error struct {
	Kind    string          `json:"kind"`
	Message string          `json:"message"`
	Errno   string          `json:"errno,omitempty"`
	Path    Bytes           `json:"path,omitempty"`
	Detail  map[string]bool `json:"detail,omitempty"`
}

func (e *Error) Error() string { return e.Message }

// ErrClosed is returned for every call on a link whose other end has closed.
var ErrClosed = errors.New("the slot's agent is gone")

// Handler answers requests. The returned descriptors are sent and then closed here. It runs in a
// goroutine of its own, and must close m.FDs. ctx ends when the caller has given up or the other
// end has closed.
type Handler func(ctx context.Context, op string, m *Message) (result any, fds []int, err error)

// SendHook is a request that wants a call when it and its descriptors were sent.
type SendHook interface{ AfterSend() }

// ReplyHook is a result that wants a call when it was sent.
type ReplyHook interface{ AfterReply() }

// socket is the part of net.UnixConn that a link uses.
type socket interface {
	ReadMsgUnix(p, oob []byte) (n, oobn, flags int, from *net.UnixAddr, err error)
	WriteMsgUnix(p, oob []byte, to *net.UnixAddr) (n, oobn int, err error)
	io.ReadWriteCloser
}

// Conn is one end of a link.
type Conn struct {
	sock    socket
	writeMu sync.Mutex
	in      inputBuffer // only Run touches it

	root      *Conn  // carries the cancels of a lane; itself otherwise
	onSettled func() // of a lane: called when the other end is done with the request
	requests  *requestSet
	next      atomic.Uint64 // of the root, for all its lanes

	mu      sync.Mutex
	waiting map[uint64]chan *Message
	closed  bool
	done    chan struct{}
}

// Pair returns a connected pair of sockets, close-on-exec.
func Pair() (ours, theirs *os.File, err error) {
	fds, err := socketpair()
	if err != nil {
		return nil, nil, fmt.Errorf("socketpair: %w", err)
	}
	return os.NewFile(uintptr(fds[0]), "link"), os.NewFile(uintptr(fds[1]), "link-peer"), nil
}

// New returns a link on file, which it closes. Run must be called before Call can be answered.
func New(file *os.File) (*Conn, error) {
	sock, err := newSocket(file)
	if err != nil {
		return nil, err
	}
	c := newConn(sock, &requestSet{running: map[uint64]context.CancelFunc{}})
	c.root = c
	return c, nil
}

func newConn(sock socket, serving *requestSet) *Conn {
	return &Conn{sock: sock, requests: serving, waiting: map[uint64]chan *Message{}, done: make(chan struct{})}
}

// NewLane returns a link on file that leads to one thread of the other end, for one call at a time.
// onSettled is called when that thread is done with a call, even with a call that was given up.
func (c *Conn) NewLane(file *os.File, settled func()) (*Conn, error) {
	sock, err := newSocket(file)
	if err != nil {
		return nil, err
	}
	lane := newConn(sock, c.requests)
	lane.root, lane.onSettled = c, settled
	return lane, nil
}

// AcceptLane returns the other end of a lane. Serve on it blocks its thread in the kernel.
func (c *Conn) AcceptLane(fd int) *Conn {
	lane := newConn(blockingSocket(fd), c.requests)
	lane.root = c
	return lane
}

func newSocket(file *os.File) (socket, error) {
	defer file.Close()
	c, err := net.FileConn(file)
	if err != nil {
		return nil, fmt.Errorf("link: %w", err)
	}
	sock, ok := c.(*net.UnixConn)
	if !ok {
		c.Close()
		return nil, errors.New("link: not a unix socket")
	}
	return sock, nil
}

// Serve answers requests one after the other on the calling goroutine, until the other end closes.
func (c *Conn) Serve(handle Handler) error {
	defer c.Close()
	for {
		m, err := c.receive()
		if err != nil {
			return err
		}
		if m.kind != kindRequest {
			m.CloseFDs()
			return fmt.Errorf("link: kind %d on a lane", m.kind)
		}
		c.serve(c.requests.enter(m.seq), handle, m)
	}
}

// Run reads until the other end closes. Requests go to handle, events to event: in order, on this
// goroutine, which must not block on a Call.
func (c *Conn) Run(handle Handler, event func(op string, body json.RawMessage)) error {
	err := c.read(handle, event)
	c.Close()
	return err
}

func (c *Conn) read(handle Handler, event func(string, json.RawMessage)) error {
	for {
		m, err := c.receive()
		if err != nil {
			return err
		}
		switch m.kind {
		case kindReply:
			c.mu.Lock()
			ch := c.waiting[m.seq]
			delete(c.waiting, m.seq)
			if ch != nil {
				// With the lock held, so that a call that is given up finds it.
				ch <- m
			}
			c.mu.Unlock()
			if ch == nil {
				m.CloseFDs()
			}
		case kindEvent:
			m.CloseFDs()
			if event != nil {
				event(m.op, m.Body)
			}
		case kindRequest:
			if handle == nil {
				m.CloseFDs()
				continue
			}
			// Entered here, so that a cancel that comes next finds it.
			go c.serve(c.requests.enter(m.seq), handle, m)
		case kindCancel:
			m.CloseFDs()
			c.requests.cancel(m.seq)
		default:
			m.CloseFDs()
			return fmt.Errorf("link: bad kind %d", m.kind)
		}
	}
}

func (c *Conn) serve(ctx context.Context, handle Handler, m *Message) {
	result, fds, err := handle(ctx, m.op, m)
	c.requests.leave(m.seq)
	if err == nil {
		err = c.send(m.seq, kindReply, "", result, fds)
	}
	// If a result cannot be sent (too large), the error is sent instead.
	if err != nil && !errors.Is(err, ErrClosed) {
		_ = c.send(m.seq, kindReply, "", AsError(err), nil)
	}
	for _, fd := range fds {
		_ = syscall.Close(fd)
	}
	if r, ok := result.(ReplyHook); ok {
		r.AfterReply()
	}
}

// AsError converts any error to an Error.
func AsError(err error) *Error {
	var e *Error
	if errors.As(err, &e) {
		return e
	}
	var errno syscall.Errno
	if errors.As(err, &errno) {
		out := &Error{Kind: "os", Message: err.Error(), Errno: ErrnoName(errno)}
		var pathErr *os.PathError
		if errors.As(err, &pathErr) {
			out.Path = Bytes(pathErr.Path)
		}
		return out
	}
	return &Error{Kind: "internal", Message: err.Error()}
}

// Call sends a request with descriptors, which stay the caller's, and waits for the reply. If ctx
// ends first, it sends a cancel, and closes the descriptors of a late reply.
func (c *Conn) Call(ctx context.Context, op string, in, out any, fds ...int) ([]int, error) {
	ch := make(chan *Message, 1)
	c.mu.Lock()
	if c.closed {
		c.mu.Unlock()
		c.settle()
		return nil, ErrClosed
	}
	seq := c.root.next.Add(1)
	c.waiting[seq] = ch
	c.mu.Unlock()
	if err := c.send(seq, kindRequest, op, in, fds); err != nil {
		c.forget(seq)
		c.settle()
		return nil, err
	}
	if s, ok := in.(SendHook); ok {
		s.AfterSend()
	}
	var m *Message
	var ok bool
	select {
	case m, ok = <-ch:
		c.settle()
	case <-ctx.Done():
		// In the background: the other end may be stopped.
		go func() {
			_ = c.root.send(seq, kindCancel, "", nil, nil)
			if late, got := <-ch; got {
				late.CloseFDs()
			}
			c.settle()
		}()
		return nil, ctx.Err()
	}
	if !ok {
		return nil, ErrClosed
	}
	if m.failed {
		m.CloseFDs()
		e := &Error{}
		if err := json.Unmarshal(m.Body, e); err != nil {
			return nil, fmt.Errorf("link: %w", err)
		}
		return nil, e
	}
	if out != nil {
		if err := Decode(m.Body, out); err != nil {
			m.CloseFDs()
			return nil, fmt.Errorf("link: %w", err)
		}
	}
	return m.FDs, nil
}

func (c *Conn) settle() {
	if c.onSettled != nil {
		c.onSettled()
	}
}

func (c *Conn) forget(seq uint64) {
	c.mu.Lock()
	delete(c.waiting, seq)
	c.mu.Unlock()
}

// Event sends a message that needs no answer.
func (c *Conn) Event(op string, in any) error {
	return c.send(0, kindEvent, op, in, nil)
}

// Done returns a channel that is closed when the other end closes or Close is called.
func (c *Conn) Done() <-chan struct{} { return c.done }

// Close ends the link; calls under way return ErrClosed.
func (c *Conn) Close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return
	}
	c.closed = true
	for seq, ch := range c.waiting {
		close(ch)
		delete(c.waiting, seq)
	}
	if c.root == c {
		c.requests.cancelAll()
	}
	close(c.done)
	_ = c.sock.Close()
}

// A message is a header (u32 size of the rest, u8 kind, u8 number of descriptors, u8 length of the
// operation's name, u8 flags, u64 sequence), the name, and the body.
const flagError = 1

func (c *Conn) send(seq uint64, k kind, op string, value any, fds []int) error {
	body, err := encode(value)
	if err != nil {
		return fmt.Errorf("link: %w", err)
	}
	if len(body) > maxBody {
		return &Error{Kind: "too_large", Message: fmt.Sprintf("a message of %d bytes is over the limit of %d",
			len(body), maxBody)}
	}
	if len(op) > 255 || len(fds) > maxFDs {
		return fmt.Errorf("link: operation %q with %d descriptors", op, len(fds))
	}
	buf := make([]byte, headerSize, headerSize+len(op)+len(body))
	binary.BigEndian.PutUint32(buf[0:], uint32(len(op)+len(body)))
	buf[4], buf[5], buf[6] = byte(k), byte(len(fds)), byte(len(op))
	if _, failed := value.(*Error); failed {
		buf[7] = flagError
	}
	binary.BigEndian.PutUint64(buf[8:], seq)
	buf = append(append(buf, op...), body...)
	var oob []byte
	if len(fds) > 0 {
		oob = syscall.UnixRights(fds...)
	}
	err = c.write(buf, oob)
	for wait := time.Millisecond; errors.Is(err, syscall.ETOOMANYREFS) && wait < passTimeout; wait *= 2 {
		time.Sleep(wait)
		err = c.write(buf, oob)
	}
	switch {
	case errors.Is(err, syscall.ETOOMANYREFS):
		return &Error{Kind: "exhausted",
			Message: "descriptors cannot be passed, because this user has too many in flight: " + err.Error()}
	case err != nil:
		return fmt.Errorf("%w: %w", ErrClosed, err)
	}
	return nil
}

// passTimeout bounds the wait while processes of the same user, also in other slots and sandboxes,
// have more descriptors in flight than the kernel allows a user. Nothing was sent then, and the
// link still works.
const passTimeout = 256 * time.Millisecond

func (c *Conn) write(buf, oob []byte) error {
	c.writeMu.Lock()
	defer c.writeMu.Unlock()
	// The descriptors travel with the first byte; a short write continues without them.
	n, _, err := c.sock.WriteMsgUnix(buf, oob, nil)
	if err == nil && n < len(buf) {
		_, err = c.sock.Write(buf[n:])
	}
	return err
}

// inputBuffer holds bytes that were read but not returned, and descriptors in the order of their
// messages.
type inputBuffer struct {
	buf        []byte
	start, end int
	oob        []byte
	fds        []int
}

const readSize = 4096

func (c *Conn) fill(need int) error {
	in := &c.in
	if in.buf == nil {
		in.buf, in.oob = make([]byte, readSize), make([]byte, syscall.CmsgSpace(4*maxFDs))
	}
	if in.start == in.end {
		in.start, in.end = 0, 0
	} else if in.start+need > len(in.buf) {
		in.end = copy(in.buf, in.buf[in.start:in.end])
		in.start = 0
	}
	for in.end-in.start < need {
		n, oobn, flags, _, err := c.sock.ReadMsgUnix(in.buf[in.end:], in.oob)
		if err != nil {
			return err
		}
		fds, err := parseFDs(in.oob[:oobn])
		in.fds = append(in.fds, fds...)
		in.end += n
		switch {
		case err != nil:
			return err
		case flags&syscall.MSG_CTRUNC != 0:
			// It is unknown which message lacks them.
			return errors.New("link: descriptors were lost: too many are open")
		case n == 0:
			return io.EOF
		}
	}
	return nil
}

func (c *Conn) receive() (*Message, error) {
	in := &c.in
	if err := c.fill(headerSize); err != nil {
		return nil, c.abandon(err)
	}
	header := in.buf[in.start : in.start+headerSize]
	size, opSize, fdCount := int(binary.BigEndian.Uint32(header)), int(header[6]), int(header[5])
	m := &Message{kind: kind(header[4]), failed: header[7]&flagError != 0, seq: binary.BigEndian.Uint64(header[8:])}
	in.start += headerSize
	if size > maxBody+opSize || size < opSize || fdCount > len(in.fds) {
		return nil, c.abandon(fmt.Errorf("link: message of %d bytes, %d of them its name, with %d of %d descriptors",
			size, opSize, len(in.fds), fdCount))
	}
	m.FDs, in.fds = in.fds[:fdCount:fdCount], in.fds[fdCount:]
	if len(in.fds) == 0 {
		in.fds = nil
	}
	whole := make([]byte, size)
	n := copy(whole, in.buf[in.start:in.end])
	in.start += n
	if _, err := io.ReadFull(c.sock, whole[n:]); err != nil {
		m.CloseFDs()
		return nil, c.abandon(err)
	}
	m.op, m.Body = string(whole[:opSize]), whole[opSize:]
	return m, nil
}

// abandon closes descriptors that belong to no message.
func (c *Conn) abandon(err error) error {
	for _, fd := range c.in.fds {
		_ = syscall.Close(fd)
	}
	c.in.fds = nil
	return err
}

func parseFDs(oob []byte) ([]int, error) {
	if len(oob) == 0 {
		return nil, nil
	}
	messages, err := syscall.ParseSocketControlMessage(oob)
	if err != nil {
		return nil, fmt.Errorf("link: %w", err)
	}
	var all []int
	for _, m := range messages {
		fds, err := syscall.ParseUnixRights(&m)
		if err != nil {
			continue
		}
		all = append(all, fds...)
	}
	for _, fd := range all {
		syscall.CloseOnExec(fd)
	}
	return all, nil
}
