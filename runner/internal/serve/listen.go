package serve

import (
	"context"
	"encoding/json"
	"net"
	"net/netip"
	"path/filepath"
	"syscall"
	"time"

	"hermes-exec/runner/internal/channel"
	"hermes-exec/runner/internal/ipc"
	"hermes-exec/runner/internal/wire"
)

// acceptPause is how long a listener waits when the sandbox has no descriptor left.
const acceptPause = 50 * time.Millisecond

var errNotListening = &wire.Error{Kind: "os", Errno: "ECONNABORTED", Message: "the listener has ended"}

// listenSocket is a UNIX or TCP socket that listens.
type listenSocket interface {
	net.Listener
	syscall.Conn
	SetDeadline(time.Time) error
}

// endListening frees the address of a socket at once: another process may still have a copy of the
// descriptor, such as the agent that has just sent it.
func endListening(socket listenSocket) {
	if raw, err := socket.SyscallConn(); err == nil {
		_ = raw.Control(func(fd uintptr) { _ = syscall.Shutdown(int(fd), syscall.SHUT_RDWR) })
	}
	_ = socket.Close()
}

// listener is a socket of a slot whose connections go to net.accept.
type listener struct {
	slot     string
	accepted chan peer
	done     <-chan struct{}
}

// listenParams are the parameters of net.listen: Path, or Host and Port.
type listenParams struct {
	Slot string    `json:"slot"`
	Path ipc.Bytes `json:"path"`
	Host string    `json:"host"`
	Port *int      `json:"port"`
}

// request returns the agent's operation and its parameters.
func (p listenParams) request() (op string, in any, err error) {
	if p.Port == nil {
		if !filepath.IsAbs(string(p.Path)) {
			return "", nil, channel.BadRequest("the path of a socket %q is not absolute", p.Path)
		}
		return ipc.OpListen, ipc.Listen{Path: p.Path}, nil
	}
	if _, err := netip.ParseAddr(p.Host); err != nil || p.Path != "" || *p.Port < 0 || *p.Port > 65535 {
		return "", nil, channel.BadRequest("path %q, host %q and port %d are no address", p.Path, p.Host, *p.Port)
	}
	return ipc.OpListenTCP, ipc.ListenTCP{Host: p.Host, Port: *p.Port}, nil
}

// netListen makes a socket in the slot. It listens until its conversation is cancelled or the slot
// ends. It accepts one connection more than net.accept took; the kernel holds the others.
func (s *Server) netListen(c *channel.Conversation, params json.RawMessage) (any, error) {
	var p listenParams
	if err := channel.Decode(params, &p); err != nil {
		return nil, err
	}
	op, in, err := p.request()
	if err != nil {
		return nil, err
	}
	scope, err := s.exec.Scope(c.Ctx, p.Slot)
	if err != nil {
		return nil, err
	}
	ctx, leave, err := scope.EnterConnection(c.Ctx)
	defer leave()
	if err != nil {
		return nil, err
	}
	socket, err := openSocket[listenSocket](ctx, scope.Agent(), op, in, net.FileListener)
	if err != nil {
		return nil, err
	}
	defer endListening(socket)
	defer context.AfterFunc(ctx, func() { _ = socket.SetDeadline(time.Now()) })()
	l := &listener{slot: p.Slot, accepted: make(chan peer), done: ctx.Done()}
	s.listeners.Store(c.ID, l)
	defer s.listeners.Delete(c.ID)
	event, err := json.Marshal(listening{Event: "listening", Address: tcpAddress(socket.Addr())})
	if err != nil {
		return nil, err
	}
	c.Event(event, false)
	l.serve(ctx, socket)
	return nil, context.Cause(ctx)
}

// listening is an EVENT of net.listen.
type listening struct {
	Event   string `json:"event"`
	Address string `json:"address,omitempty"` // of TCP
}

// tcpAddress returns address and port of a TCP socket, "" for others.
func tcpAddress(address net.Addr) string {
	if _, ok := address.(*net.TCPAddr); !ok {
		return ""
	}
	return address.String()
}

// serve accepts until ctx ends.
func (l *listener) serve(ctx context.Context, socket listenSocket) {
	for ctx.Err() == nil {
		accepted, err := socket.Accept()
		if err != nil {
			select {
			case <-ctx.Done():
			case <-time.After(acceptPause):
			}
			continue
		}
		select {
		case l.accepted <- accepted.(peer):
		case <-ctx.Done():
			_ = accepted.Close()
		}
	}
}

// netAccept waits for the next connection to a listener and carries it.
func (s *Server) netAccept(c *channel.Conversation, params json.RawMessage) (any, error) {
	var p struct {
		Slot     string `json:"slot"`
		Listener uint64 `json:"listener"`
	}
	if err := channel.Decode(params, &p); err != nil {
		return nil, err
	}
	scope, err := s.exec.Scope(c.Ctx, p.Slot)
	if err != nil {
		return nil, err
	}
	value, _ := s.listeners.Load(p.Listener)
	l, _ := value.(*listener)
	if l == nil || l.slot != p.Slot {
		return nil, errNotListening
	}
	ctx, leave, err := scope.EnterConnection(c.Ctx)
	defer leave()
	if err != nil {
		return nil, err
	}
	select {
	case peer := <-l.accepted:
		return nil, s.carry(ctx, c, peer, tcpAddress(peer.LocalAddr()))
	case <-l.done:
		return nil, errNotListening
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}
