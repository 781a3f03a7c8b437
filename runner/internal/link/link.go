// Package link is the private connection between the serving runner and a
// slot's agent process: requests, replies and events as JSON, with file
// descriptors attached. Both ends are this same program, the agent runs no
// tenant code, and the socket is inherited, never named.
package link

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
	"syscall"
)

const (
	headerSize = 16
	// maxBody bounds one message; a command of several MiB must fit.
	maxBody = 48 << 20
	maxFDs  = 16
)

// Kind of a message.
type kind uint8

const (
	kindRequest kind = 1
	kindReply   kind = 2
	kindEvent   kind = 3
)

// Message is what arrived: the body is JSON, FDs belong to the receiver.
type Message struct {
	seq  uint64
	kind kind
	op   uint8
	Body json.RawMessage
	FDs  []int
}

// CloseFDs closes the descriptors that came with the message.
func (m *Message) CloseFDs() {
	for _, fd := range m.FDs {
		_ = syscall.Close(fd)
	}
	m.FDs = nil
}

// Error is a failure that the other end reports. Kind is one of the kinds of
// the wire protocol (docs/protocol.md), Errno the name of the system's error.
type Error struct {
	Kind    string `json:"kind"`
	Message string `json:"message"`
	Errno   string `json:"errno,omitempty"`
	Path    string `json:"path,omitempty"`
}

func (e *Error) Error() string { return e.Message }

// ErrClosed is returned for every call on a link whose other end is gone.
var ErrClosed = errors.New("the slot's agent is gone")

// Handler answers requests. The returned descriptors are sent along and then
// closed here. It runs in a goroutine of its own; the handler closes m.FDs.
type Handler func(op string, m *Message) (result any, fds []int, err error)

// Replied is a result that wants to know when the other end has been sent it.
type Replied interface{ Replied() }

// Conn is one end of a link.
type Conn struct {
	sock    *net.UnixConn
	writeMu sync.Mutex

	mu      sync.Mutex
	next    uint64
	waiting map[uint64]chan *Message
	closed  bool
	done    chan struct{}
}

// Pair makes a connected pair of sockets, close-on-exec, for the two ends.
func Pair() (ours, theirs *os.File, err error) {
	fds, err := socketpair()
	if err != nil {
		return nil, nil, fmt.Errorf("socketpair: %w", err)
	}
	return os.NewFile(uintptr(fds[0]), "link"), os.NewFile(uintptr(fds[1]), "link-peer"), nil
}

// New takes over file (it is closed here) and returns the link on it. Run must
// be called before Call can be answered.
func New(file *os.File) (*Conn, error) {
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
	return &Conn{sock: sock, waiting: map[uint64]chan *Message{}, done: make(chan struct{})}, nil
}

type envelope struct {
	Op    string          `json:"op,omitempty"`
	Body  json.RawMessage `json:"body,omitempty"`
	Error *Error          `json:"error,omitempty"`
}

// Run reads until the other end is gone. Requests go to handle, events to
// event (in order, on this goroutine: it must not block on a Call).
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
		var e envelope
		if err := json.Unmarshal(m.Body, &e); err != nil {
			m.CloseFDs()
			return fmt.Errorf("link: bad message: %w", err)
		}
		m.Body = e.Body
		switch m.kind {
		case kindReply:
			c.mu.Lock()
			ch := c.waiting[m.seq]
			delete(c.waiting, m.seq)
			c.mu.Unlock()
			if ch == nil {
				m.CloseFDs()
				continue
			}
			if e.Error != nil {
				m.op = 1
				m.Body, _ = json.Marshal(e.Error)
			}
			ch <- m
		case kindEvent:
			m.CloseFDs()
			if event != nil {
				event(e.Op, e.Body)
			}
		case kindRequest:
			if handle == nil {
				m.CloseFDs()
				continue
			}
			go c.serve(handle, e.Op, m)
		default:
			m.CloseFDs()
			return fmt.Errorf("link: bad kind %d", m.kind)
		}
	}
}

func (c *Conn) serve(handle Handler, op string, m *Message) {
	result, fds, err := handle(op, m)
	var e envelope
	if err != nil {
		e.Error = AsError(err)
	} else if e.Body, err = json.Marshal(result); err != nil {
		e.Error = &Error{Kind: "internal", Message: err.Error()}
	}
	_ = c.send(m.seq, kindReply, e, fds)
	for _, fd := range fds {
		_ = syscall.Close(fd)
	}
	if r, ok := result.(Replied); ok {
		r.Replied()
	}
}

// AsError turns any error into the form that travels.
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
			out.Path = pathErr.Path
		}
		return out
	}
	return &Error{Kind: "internal", Message: err.Error()}
}

// Call sends a request with descriptors (which stay the caller's) and waits
// for the reply. When ctx ends first the late reply's descriptors are closed.
func (c *Conn) Call(ctx context.Context, op string, in, out any, fds ...int) ([]int, error) {
	body, err := json.Marshal(in)
	if err != nil {
		return nil, fmt.Errorf("link: %w", err)
	}
	ch := make(chan *Message, 1)
	c.mu.Lock()
	if c.closed {
		c.mu.Unlock()
		return nil, ErrClosed
	}
	c.next++
	seq := c.next
	c.waiting[seq] = ch
	c.mu.Unlock()
	if err := c.send(seq, kindRequest, envelope{Op: op, Body: body}, fds); err != nil {
		c.forget(seq)
		return nil, err
	}
	var m *Message
	var ok bool
	select {
	case m, ok = <-ch:
	case <-ctx.Done():
		c.forget(seq)
		select {
		case late, got := <-ch:
			if got {
				late.CloseFDs()
			}
		default:
		}
		return nil, ctx.Err()
	}
	if !ok {
		return nil, ErrClosed
	}
	if m.op == 1 {
		m.CloseFDs()
		e := &Error{}
		if err := json.Unmarshal(m.Body, e); err != nil {
			return nil, fmt.Errorf("link: %w", err)
		}
		return nil, e
	}
	if out != nil {
		if err := json.Unmarshal(m.Body, out); err != nil {
			m.CloseFDs()
			return nil, fmt.Errorf("link: %w", err)
		}
	}
	return m.FDs, nil
}

func (c *Conn) forget(seq uint64) {
	c.mu.Lock()
	delete(c.waiting, seq)
	c.mu.Unlock()
}

// Event tells the other end something that needs no answer.
func (c *Conn) Event(op string, in any) error {
	body, err := json.Marshal(in)
	if err != nil {
		return fmt.Errorf("link: %w", err)
	}
	return c.send(0, kindEvent, envelope{Op: op, Body: body}, nil)
}

// Done is closed when the other end is gone or Close was called.
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
	close(c.done)
	_ = c.sock.Close()
}

func (c *Conn) send(seq uint64, k kind, e envelope, fds []int) error {
	body, err := json.Marshal(e)
	if err != nil {
		return fmt.Errorf("link: %w", err)
	}
	if len(body) > maxBody {
		return &Error{Kind: "too_large", Message: fmt.Sprintf("a message of %d bytes is over the limit of %d", len(body), maxBody)}
	}
	buf := make([]byte, headerSize, headerSize+len(body))
	binary.BigEndian.PutUint32(buf[0:], uint32(len(body)))
	buf[4] = byte(k)
	buf[5] = byte(len(fds))
	binary.BigEndian.PutUint64(buf[8:], seq)
	buf = append(buf, body...)
	var oob []byte
	if len(fds) > 0 {
		oob = syscall.UnixRights(fds...)
	}
	c.writeMu.Lock()
	defer c.writeMu.Unlock()
	// The descriptors ride on the first byte; a short write goes on without them.
	n, _, err := c.sock.WriteMsgUnix(buf, oob, nil)
	if err == nil && n < len(buf) {
		_, err = c.sock.Write(buf[n:])
	}
	if err != nil {
		return fmt.Errorf("%w: %w", ErrClosed, err)
	}
	return nil
}

func (c *Conn) receive() (*Message, error) {
	header := make([]byte, headerSize)
	oob := make([]byte, syscall.CmsgSpace(4*maxFDs))
	n, oobn, _, _, err := c.sock.ReadMsgUnix(header, oob)
	if err != nil {
		return nil, err
	}
	if n == 0 {
		return nil, io.EOF
	}
	fds, err := parseFDs(oob[:oobn])
	m := &Message{FDs: fds}
	if err == nil {
		_, err = io.ReadFull(c.sock, header[n:])
	}
	if err == nil {
		size := binary.BigEndian.Uint32(header)
		m.kind, m.seq = kind(header[4]), binary.BigEndian.Uint64(header[8:])
		switch {
		case size > maxBody:
			err = fmt.Errorf("link: message of %d bytes", size)
		case int(header[5]) != len(fds):
			err = fmt.Errorf("link: %d descriptors announced, %d arrived", header[5], len(fds))
		default:
			m.Body = make([]byte, size)
			_, err = io.ReadFull(c.sock, m.Body)
		}
	}
	if err != nil {
		m.CloseFDs()
		return nil, err
	}
	return m, nil
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
