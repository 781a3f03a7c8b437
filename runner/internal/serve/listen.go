package serve

import (
	"context"
	"encoding/json"
	"net"
	"path/filepath"
	"time"

	"hermes-exec/runner/internal/channel"
	"hermes-exec/runner/internal/ipc"
	"hermes-exec/runner/internal/wire"
)

// acceptPause is how long a listener waits when the sandbox has no descriptor left.
const acceptPause = 50 * time.Millisecond

var errNotListening = &wire.Error{Kind: "os", Errno: "ECONNABORTED", Message: "the listener has ended"}

// listener is a UNIX socket of a slot whose connections go to net.accept.
type listener struct {
	slot     string
	accepted chan *net.UnixConn
	done     <-chan struct{}
}

// netListen makes a UNIX socket in the slot. It listens until its conversation is cancelled or the
// slot ends. It accepts one connection more than net.accept took; the kernel holds the others.
func (s *Server) netListen(c *channel.Conversation, params json.RawMessage) (any, error) {
	var p struct {
		Slot string    `json:"slot"`
		Path ipc.Bytes `json:"path"`
	}
	if err := channel.Decode(params, &p); err != nil {
		return nil, err
	}
	if !filepath.IsAbs(string(p.Path)) {
		return nil, channel.BadRequest("the path of a socket %q is not absolute", p.Path)
	}
	scope, err := s.exec.Scope(c.Ctx, p.Slot)
	if err != nil {
		return nil, err
	}
	ctx, leave := scope.Join(c.Ctx)
	defer leave()
	socket, err := openSocket[*net.UnixListener](ctx, scope.Agent, ipc.OpListen, ipc.Listen{Path: p.Path},
		net.FileListener)
	if err != nil {
		return nil, err
	}
	socket.SetUnlinkOnClose(false) // the path belongs to the slot's view
	defer context.AfterFunc(ctx, func() { _ = socket.Close() })()
	l := &listener{slot: p.Slot, accepted: make(chan *net.UnixConn), done: ctx.Done()}
	s.listeners.Store(c.ID, l)
	defer s.listeners.Delete(c.ID)
	c.Event([]byte(`{"event":"listening"}`), false)
	l.serve(ctx, socket)
	return nil, context.Cause(ctx)
}

// serve accepts until ctx ends.
func (l *listener) serve(ctx context.Context, socket *net.UnixListener) {
	for ctx.Err() == nil {
		peer, err := socket.AcceptUnix()
		if err != nil {
			select {
			case <-ctx.Done():
			case <-time.After(acceptPause):
			}
			continue
		}
		select {
		case l.accepted <- peer:
		case <-ctx.Done():
			_ = peer.Close()
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
	ctx, leave := scope.Join(c.Ctx)
	defer leave()
	select {
	case peer := <-l.accepted:
		return nil, s.carry(ctx, c, peer)
	case <-l.done:
		return nil, errNotListening
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}
