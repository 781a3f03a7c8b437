package serve

import (
	"context"
	"encoding/json"
	"net"

	"hermes-exec/runner/internal/channel"
	"hermes-exec/runner/internal/ipc"
	"hermes-exec/runner/internal/pipe"
	"hermes-exec/runner/internal/wire"
)

// connectTime is how long a connection may take to be made, in seconds.
const connectTime = 30

// netConnect carries one TCP connection of the slot's network.
func (s *Server) netConnect(c *channel.Conversation, params json.RawMessage) (any, error) {
	var p struct {
		Slot string `json:"slot"`
		Host string `json:"host"`
		Port int    `json:"port"`
	}
	if err := channel.Decode(params, &p); err != nil {
		return nil, err
	}
	if p.Host == "" || p.Port < 1 || p.Port > 65535 {
		return nil, channel.BadRequest("host %q and port %d are no address", p.Host, p.Port)
	}
	slot, agent, err := s.exec.Slot(c.Ctx, p.Slot)
	if err != nil {
		return nil, err
	}
	ctx, leave := slot.Join(c.Ctx)
	defer leave()
	fds, err := agent.Call(ctx, ipc.OpConnect, ipc.Connect{Host: p.Host, Port: p.Port, TimeoutS: connectTime}, nil)
	if err != nil {
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		return nil, err
	}
	peer, err := connection(fds)
	if err != nil {
		return nil, err
	}
	defer peer.Close()
	defer context.AfterFunc(ctx, func() { _ = peer.Close() })()
	c.Event([]byte(`{"event":"connected"}`), false)
	received := make(chan struct{})
	go func() {
		defer close(received)
		defer channel.Contain(s.log, "connection")
		_, err := c.Receive(ctx, func(piece []byte) error {
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
		return nil, context.Cause(ctx)
	}
	return nil, err
}

func connection(fds []int) (*net.TCPConn, error) {
	files := pipe.Files(fds)
	defer pipe.CloseFiles(files)
	if len(files) != 1 {
		return nil, &wire.Error{Kind: "internal", Message: "the agent opened no connection"}
	}
	c, err := net.FileConn(files[0])
	if err != nil {
		return nil, err
	}
	peer, ok := c.(*net.TCPConn)
	if !ok {
		_ = c.Close()
		return nil, &wire.Error{Kind: "internal", Message: "the agent opened something else than a connection"}
	}
	return peer, nil
}

// relay sends what the peer says. A connection that breaks ends like any other.
func relay(c *channel.Conversation, peer *net.TCPConn) error {
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
