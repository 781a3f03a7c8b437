package serve

import (
	"context"
	"encoding/json"
	"io"
	"net"
	"os"
	"time"

	"hermes-exec/runner/internal/channel"
	"hermes-exec/runner/internal/ipc"
	"hermes-exec/runner/internal/link"
	"hermes-exec/runner/internal/pipe"
	"hermes-exec/runner/internal/wire"
)

const (
	// connectTimeoutS is how long one attempt at a connection may take, in seconds.
	connectTimeoutS = 30
	// maxWaitS is how long a request may wait for a listener, in seconds.
	maxWaitS = 1_000_000_000
	// flushTimeout is how long a peer has to take the last data.
	flushTimeout = 2 * time.Second
)

// netConnect carries one TCP connection of the slot's network.
func (s *Server) netConnect(c *channel.Conversation, params json.RawMessage) (any, error) {
	var p struct {
		Slot  string  `json:"slot"`
		Host  string  `json:"host"`
		Port  int     `json:"port"`
		WaitS float64 `json:"wait_s"`
	}
	if err := channel.Decode(params, &p); err != nil {
		return nil, err
	}
	if p.Host == "" || p.Port < 1 || p.Port > 65535 {
		return nil, channel.BadRequest("host %q and port %d are no address", p.Host, p.Port)
	}
	if p.WaitS < 0 || p.WaitS > maxWaitS {
		return nil, channel.BadRequest("wait_s must be from 0 to %d, not %v", maxWaitS, p.WaitS)
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
	where := ipc.Connect{Host: p.Host, Port: p.Port, TimeoutS: connectTimeoutS, WaitS: p.WaitS}
	peer, err := openSocket[*net.TCPConn](ctx, scope.Agent(), ipc.OpConnect, where, net.FileConn)
	if err != nil {
		return nil, err
	}
	return nil, s.carry(ctx, c, peer, "")
}

// peer is the other end of a connection in a slot.
type peer interface {
	net.Conn
	CloseWrite() error
}

// connected is an EVENT of net.connect and net.accept.
type connected struct {
	Event string `json:"event"`
	Local string `json:"local,omitempty"` // the address that a TCP client in the slot used
}

// carry relays between a connection and a conversation until both directions have ended. After a
// cancel of the driver, data that it sent before still arrives. local is the address that a client
// in the slot used, if any.
func (s *Server) carry(ctx context.Context, c *channel.Conversation, peer peer, local string) error {
	defer peer.Close()
	defer context.AfterFunc(ctx, func() {
		c.FinishInput()
		now := time.Now()
		_ = peer.SetReadDeadline(now)
		_ = peer.SetWriteDeadline(now.Add(flushTimeout))
	})()
	event, err := json.Marshal(connected{Event: "connected", Local: local})
	if err != nil {
		return err
	}
	c.Event(event, false)
	received := make(chan struct{})
	go func() {
		defer close(received)
		defer channel.Contain(s.log, "connection")
		_, err := c.Receive(context.Background(), func(piece []byte) error {
			_, err := peer.Write(piece)
			return err
		})
		if err != nil {
			c.DiscardInput()
			c.GrantInput()
		}
		_ = peer.CloseWrite()
	}()
	err = relay(c, peer)
	c.SendEnd(0)
	<-received
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}

// openSocket returns a socket that the agent of a slot opens.
func openSocket[T io.Closer, Found io.Closer](ctx context.Context, agent *link.Agent, op string, in any,
	as func(*os.File) (Found, error)) (T, error) {
	var none T
	fds, err := agent.Call(ctx, op, in, nil)
	if err != nil {
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		return none, err
	}
	files := pipe.Files(fds)
	defer pipe.CloseFiles(files)
	if len(files) != 1 {
		return none, &wire.Error{Kind: "internal", Message: "the agent opened no socket"}
	}
	socket, err := as(files[0])
	if err != nil {
		return none, err
	}
	wanted, ok := any(socket).(T)
	if !ok {
		_ = socket.Close()
		return none, &wire.Error{Kind: "internal", Message: "the agent opened another kind of socket"}
	}
	return wanted, nil
}

// relay sends the peer's data. A broken connection ends like any other.
func relay(c *channel.Conversation, peer peer) error {
	buffer := pipe.Buffers.Get().(*[wire.MaxData]byte)
	defer pipe.Buffers.Put(buffer)
	for {
		n, err := peer.Read(buffer[:])
		if n > 0 {
			if err := c.Send(0, buffer[:n], false); err != nil {
				return err
			}
		}
		if err != nil {
			return nil
		}
	}
}
