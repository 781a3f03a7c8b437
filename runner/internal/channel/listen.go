package channel

import (
	"crypto/hmac"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"time"

	"hermes-exec/runner/internal/wire"
)

const (
	handshakeTimeout = 10 * time.Second
	// maxHandshakes bounds the connections that have not authenticated themselves.
	maxHandshakes = 32
)

func socketPath(base string) string { return filepath.Join(base, "run", "socket") }

func listen(base string) (*net.UnixListener, error) {
	dir := filepath.Join(base, "run")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("socket directory: %w", err)
	}
	if err := os.Chmod(dir, 0o700); err != nil {
		return nil, fmt.Errorf("socket directory: %w", err)
	}
	path := socketPath(base)
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("old socket: %w", err)
	}
	var listener *net.UnixListener
	err := withShortPath(path, func(short string) (err error) {
		listener, err = net.ListenUnix("unix", &net.UnixAddr{Name: short, Net: "unix"})
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("listen: %w", err)
	}
	listener.SetUnlinkOnClose(false)
	return listener, nil
}

func (s *Endpoint) accept(listener *net.UnixListener) {
	for {
		c, err := listener.AcceptUnix()
		if err != nil {
			if s.ctx.Err() != nil {
				return
			}
			// Out of descriptors or memory: some connections will close.
			s.log.Printf("accept: %v", err)
			time.Sleep(50 * time.Millisecond)
			continue
		}
		go s.serveAttached(c)
	}
}

// Dial connects to a driver that waits on a socket, and serves the connection. If that fails, the
// driver uses `runner attach`.
func (s *Endpoint) Dial(path string) {
	c, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		s.log.Printf("dial: %v", err)
		return
	}
	defer Contain(s.log, "stream")
	if ended := watchPeer(c); ended != nil {
		go s.owner.Follow(ended)
	}
	s.Serve(c)
}

// serveAttached serves one connection of `runner attach` to its end.
func (s *Endpoint) serveAttached(attached *net.UnixConn) {
	defer attached.Close()
	defer Contain(s.log, "stream")
	s.admit(attached)
	timer := time.AfterFunc(handshakeTimeout, func() { _ = attached.Close() })
	c, err := receiveStream(attached)
	timer.Stop()
	s.dismiss(attached)
	if err != nil {
		return
	}
	defer c.Close()
	s.Serve(c)
}

// admit counts a connection that has not authenticated itself. Above maxHandshakes it closes the
// oldest.
func (s *Endpoint) admit(c conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.handshakes = append(s.handshakes, c)
	if len(s.handshakes) > maxHandshakes {
		_ = s.handshakes[0].Close()
		s.handshakes = s.handshakes[1:]
	}
}

func (s *Endpoint) dismiss(c conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i, have := range s.handshakes {
		if have == c {
			s.handshakes = append(s.handshakes[:i], s.handshakes[i+1:]...)
			return
		}
	}
}

// Serve speaks the protocol on one connection until it ends, and closes it.
func (s *Endpoint) Serve(c conn) {
	order := s.streamCount.Add(1)
	s.admit(c)
	timer := time.AfterFunc(handshakeTimeout, func() { _ = c.Close() })
	reader := wire.NewReader(c)
	hello, err := s.handshake(c, reader)
	s.dismiss(c) // before READY: the next connection must not close this one
	if err == nil {
		s.owner.ApplyHello(hello)
		err = writeJSON(c, wire.Ready, s.owner.Facts())
	}
	timer.Stop()
	if err != nil {
		var refused *refusal
		if errors.As(err, &refused) {
			_, _ = c.Write(goodbyeFrame(refused.reason, refused.message))
		} else if errors.Is(err, wire.ErrProtocol) {
			_, _ = c.Write(goodbyeFrame("protocol", err.Error()))
		}
		_ = c.Close()
		return
	}
	reader.Grow()
	st := newStream(s, c, reader)
	st.order = order
	if !s.adopt(st) {
		_, _ = c.Write(goodbyeFrame("replaced", "a newer stream was attached"))
		_ = c.Close()
		return
	}
	go st.write()
	err = st.read()
	if errors.Is(err, wire.ErrProtocol) {
		s.log.Printf("stream: %v", err)
		st.goodbye("protocol", err.Error())
		<-st.closed
	} else if errors.Is(err, errReplaced) || s.ctx.Err() != nil {
		<-st.closed
	}
	st.close()
	s.detachAll(st)
}

// refusal is a handshake that failed for a reason that the driver gets.
type refusal struct{ reason, message string }

func (r *refusal) Error() string { return r.reason + ": " + r.message }

// handshake does the whole handshake except READY.
func (s *Endpoint) handshake(c conn, reader *wire.Reader) (wire.HelloMessage, error) {
	var none wire.HelloMessage
	h, payload, err := reader.Next()
	if err != nil {
		return none, err
	}
	if h.Type != wire.Hello {
		return none, fmt.Errorf("%w: frame type %d before HELLO", wire.ErrProtocol, h.Type)
	}
	hello, theirs, claim, err := wire.DecodeHello(payload)
	if err != nil {
		return none, err
	}
	if !hello.SupportsVersion() {
		return none, &refusal{"version", fmt.Sprintf("this runner speaks version %d", wire.Version)}
	}
	ours := make([]byte, wire.NonceSize)
	if _, err := rand.Read(ours); err != nil {
		return none, fmt.Errorf("nonce: %w", err)
	}
	welcome := wire.WelcomeMessage{Version: wire.Version, BootID: s.bootID, Nonce: hex.EncodeToString(ours)}
	if hello.BootID != "" && hello.BootID != s.bootID {
		_ = writeJSON(c, wire.Welcome, welcome)
		return none, io.EOF
	}
	key, err := s.keyFor(claim)
	if err != nil {
		return none, err
	}
	if claim == nil {
		welcome.Proof = hex.EncodeToString(wire.Prove(key, "runner", theirs, ours, s.bootID))
	}
	if err := writeJSON(c, wire.Welcome, welcome); err != nil {
		return none, err
	}
	if claim == nil {
		if err := checkProof(reader, wire.Prove(key, "driver", theirs, ours, s.bootID)); err != nil {
			return none, err
		}
	}
	return hello, nil
}

// keyFor claims the runner, or returns the key for the proof.
func (s *Endpoint) keyFor(claim []byte) ([]byte, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case claim != nil && s.key != nil && !hmac.Equal(claim, s.key): // the same claim may be repeated
		return nil, &refusal{"denied", "this runner is claimed"}
	case claim == nil && s.key == nil:
		return nil, &refusal{"denied", "this runner is not claimed yet"}
	case claim != nil:
		s.key = claim
	}
	return s.key, nil
}

func checkProof(reader *wire.Reader, want []byte) error {
	h, payload, err := reader.Next()
	if err != nil {
		return err
	}
	if h.Type != wire.Proof {
		return fmt.Errorf("%w: frame type %d instead of PROOF", wire.ErrProtocol, h.Type)
	}
	proof, err := wire.DecodeProof(payload)
	if err != nil {
		return err
	}
	if !hmac.Equal(proof, want) {
		return &refusal{"denied", "wrong proof"}
	}
	return nil
}

func writeJSON(w io.Writer, t wire.Type, message any) error {
	payload, err := json.Marshal(message)
	if err != nil {
		return fmt.Errorf("handshake: %w", err)
	}
	if _, err := w.Write(wire.AppendFrame(nil, t, 0, 0, payload)); err != nil {
		return fmt.Errorf("handshake: %w", err)
	}
	return nil
}
