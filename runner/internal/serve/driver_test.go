package serve_test

import (
	"bytes"
	"crypto/rand"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"log"
	"net"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"

	"hermes-exec/runner/internal/agent"
	"hermes-exec/runner/internal/initproc"
	"hermes-exec/runner/internal/isolation"
	"hermes-exec/runner/internal/serve"
	"hermes-exec/runner/internal/slots"
	"hermes-exec/runner/internal/wire"
)

const patience = 60 * time.Second

// TestMain makes the test program its own agent.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == "agent" {
		os.Exit(agent.Main(os.Args[2:]))
	}
	// Directories that a slot's user may not enter would be on the way.
	_ = os.Setenv("PATH", "/usr/local/bin:/usr/bin:/bin")
	initproc.Init(initproc.Options{Threads: 8, Subreaper: true})
	initproc.HandleSignals()
	initproc.ReapOrphans()
	os.Exit(m.Run())
}

var probed = sync.OnceValue(func() isolation.Facts {
	facts, err := isolation.Probe()
	if err != nil {
		panic(err)
	}
	return facts
})

// passableDir is a directory that a slot's user can reach.
func passableDir(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "serve-test-")
	if err == nil {
		err = os.Chmod(dir, 0o711)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return filepath.Join(dir, "base")
}

// box is a serving runner under test.
type box struct {
	t      testing.TB
	server *serve.Server
	base   string
	ended  chan struct{}
}

func newBox(t testing.TB, lease time.Duration) *box {
	t.Helper()
	b := &box{t: t, base: passableDir(t)}
	b.start(lease)
	return b
}

func (b *box) start(lease time.Duration) {
	b.t.Helper()
	b.ended = make(chan struct{})
	manager, err := slots.NewManager(b.base, probed(), os.Args[0])
	if err != nil {
		b.t.Fatal(err)
	}
	var logger *log.Logger
	if testing.Verbose() {
		logger = log.New(os.Stderr, "", log.Lmicroseconds)
	}
	b.server, err = serve.New(serve.Config{Base: b.base, Lease: lease, Slots: manager, Isolation: probed(),
		Version: "test", Log: logger})
	if err != nil {
		b.t.Fatal(err)
	}
	go func() {
		defer close(b.ended)
		if err := b.server.Run(); err != nil {
			b.t.Error(err)
		}
	}()
	b.t.Cleanup(func() {
		b.server.End("shutdown", "test over")
		b.waitEnd(patience)
	})
}

func (b *box) waitEnd(limit time.Duration) {
	select {
	case <-b.ended:
	case <-time.After(limit):
		b.t.Error("the server did not end")
	}
}

// dial gives our end of a socket pair whose other end the server serves.
func (b *box) dial() net.Conn {
	b.t.Helper()
	fds, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM, 0)
	if err != nil {
		b.t.Fatal(err)
	}
	ends := make([]net.Conn, 2)
	for i, fd := range fds {
		f := os.NewFile(uintptr(fd), "pair")
		if ends[i], err = net.FileConn(f); err != nil {
			b.t.Fatal(err)
		}
		f.Close()
	}
	go b.server.Endpoint.Serve(ends[1])
	return ends[0]
}

// driver is a small client of the protocol that keeps its conversations over
// several streams.
type driver struct {
	t      testing.TB
	key    []byte
	bootID string

	mu     sync.Mutex
	conn   net.Conn
	next   uint64
	talks  map[uint64]*talk
	bye    chan wire.GoodbyeMessage
	closed chan struct{} // the reader of the present stream has ended
	facts  map[string]any
	echoes int
}

// talk is a conversation.
type talk struct {
	d  *driver
	id uint64

	mu       sync.Mutex
	changed  *sync.Cond
	request  []byte
	data     map[uint16]*bytes.Buffer
	ends     map[uint16]bool
	events   []map[string]any
	position int64
	credited int64
	window   int64
	manual   bool // the test grants credit
	response []byte
	done     bool
	input    []byte // all that was given to send
	taken    int64  // credit of the runner
	sent     int64
	inputEnd bool
	resumed  int // times that RESUMED came with known 1
	unknown  int
}

func newDriver(t testing.TB) *driver {
	key := make([]byte, wire.KeySize)
	_, _ = rand.Read(key)
	return &driver{t: t, key: key, talks: map[uint64]*talk{}}
}

// open makes a box, and a driver that has claimed it.
func open(t testing.TB) (*box, *driver) {
	t.Helper()
	b := newBox(t, time.Minute)
	d := newDriver(t)
	if err := d.attach(b.dial(), 60); err != nil {
		t.Fatal(err)
	}
	return b, d
}

type frame struct {
	wire.Header
	payload []byte
}

func readFrame(r *wire.Reader) (frame, error) {
	h, payload, err := r.Next()
	return frame{h, bytes.Clone(payload)}, err
}

var errRefused = errors.New("refused")

// handshake opens a stream by hand.
func (d *driver) handshake(conn net.Conn, r *wire.Reader, leaseS float64) error {
	nonce := make([]byte, wire.NonceSize)
	_, _ = rand.Read(nonce)
	hello := wire.HelloMessage{Versions: []int{1}, Nonce: hex.EncodeToString(nonce), LeaseS: leaseS, Client: "test",
		BootID: d.bootID}
	if d.bootID == "" {
		hello.Claim = hex.EncodeToString(d.key)
	}
	if err := writeJSON(conn, wire.Hello, hello); err != nil {
		return err
	}
	f, err := readFrame(r)
	if err != nil {
		return err
	}
	if f.Type == wire.Goodbye {
		return fmt.Errorf("%w: %s", errRefused, f.payload)
	}
	var welcome wire.WelcomeMessage
	if err := json.Unmarshal(f.payload, &welcome); err != nil || f.Type != wire.Welcome {
		return fmt.Errorf("frame %d instead of WELCOME: %s", f.Type, f.payload)
	}
	if d.bootID != "" {
		theirs, err := hex.DecodeString(welcome.Nonce)
		if err != nil {
			return err
		}
		if want := hex.EncodeToString(wire.Prove(d.key, "runner", nonce, theirs, d.bootID)); welcome.Proof != want {
			return fmt.Errorf("the runner's proof is wrong")
		}
		proof := wire.ProofMessage{Proof: hex.EncodeToString(wire.Prove(d.key, "driver", nonce, theirs, d.bootID))}
		if err := writeJSON(conn, wire.Proof, proof); err != nil {
			return err
		}
	}
	if f, err = readFrame(r); err != nil {
		return err
	}
	if f.Type != wire.Ready {
		return fmt.Errorf("%w: frame %d instead of READY: %s", errRefused, f.Type, f.payload)
	}
	d.bootID = welcome.BootID
	return json.Unmarshal(f.payload, &d.facts)
}

func writeJSON(conn net.Conn, t wire.Type, message any) error {
	payload, err := json.Marshal(message)
	if err != nil {
		return err
	}
	_, err = conn.Write(wire.AppendFrame(nil, t, 0, 0, payload))
	return err
}

// attach opens a stream and resumes what is not over.
func (d *driver) attach(conn net.Conn, leaseS float64) error {
	r := wire.NewReader(conn)
	_ = conn.SetDeadline(time.Now().Add(patience))
	if err := d.handshake(conn, r, leaseS); err != nil {
		conn.Close()
		return err
	}
	_ = conn.SetDeadline(time.Time{})
	d.mu.Lock()
	d.conn, d.bye, d.closed = conn, make(chan wire.GoodbyeMessage, 1), make(chan struct{})
	var resume []*talk
	for _, k := range d.talks {
		resume = append(resume, k)
	}
	bye, closed := d.bye, d.closed
	d.mu.Unlock()
	go d.read(r, bye, closed)
	for _, k := range resume {
		k.mu.Lock()
		if !k.done {
			k.sent = -1 // until RESUMED says where to go on
			d.write(wire.AppendPositioned(nil, wire.Resume, 0, k.id, k.position, nil))
			if k.credited > 0 {
				d.write(wire.AppendPositioned(nil, wire.Credit, 0, k.id, k.credited, nil))
			}
		}
		k.mu.Unlock()
	}
	d.t.Cleanup(func() { conn.Close() })
	return nil
}

// cut breaks the stream and waits until nothing more is read from it.
func (d *driver) cut() {
	d.mu.Lock()
	conn, closed := d.conn, d.closed
	d.mu.Unlock()
	conn.Close()
	<-closed
}

func (d *driver) write(frame []byte) {
	d.mu.Lock()
	conn := d.conn
	d.mu.Unlock()
	_, _ = conn.Write(frame)
}

func (d *driver) read(r *wire.Reader, bye chan<- wire.GoodbyeMessage, closed chan<- struct{}) {
	defer close(closed)
	for {
		h, payload, err := r.Next()
		if err != nil {
			return
		}
		switch h.Type {
		case wire.Goodbye:
			var m wire.GoodbyeMessage
			_ = json.Unmarshal(payload, &m)
			bye <- m
			continue
		case wire.Keepalive:
			d.mu.Lock()
			d.echoes++
			d.mu.Unlock()
			continue
		}
		d.mu.Lock()
		k := d.talks[h.ID]
		d.mu.Unlock()
		if k == nil {
			d.t.Errorf("frame type %d for unknown id %d", h.Type, h.ID)
			continue
		}
		k.handle(h, payload)
	}
}

func (k *talk) handle(h wire.Header, payload []byte) {
	k.mu.Lock()
	defer k.mu.Unlock()
	defer k.changed.Broadcast()
	position := int64(0)
	if h.Type != wire.Response && h.Type != wire.Resumed {
		position = int64(binary.BigEndian.Uint64(payload))
		payload = payload[8:]
	}
	switch h.Type {
	case wire.Response:
		k.response = append(k.response, payload...)
		k.done = h.Flags&wire.More == 0
	case wire.Data, wire.Event:
		if position+int64(len(payload)) <= k.position {
			return
		}
		if position != k.position {
			k.d.t.Errorf("id %d: data at %d, expected %d", k.id, position, k.position)
		}
		k.position += int64(len(payload))
		if h.Type == wire.Event {
			var event map[string]any
			_ = json.Unmarshal(payload, &event)
			k.events = append(k.events, event)
		} else {
			if k.data[h.Channel] == nil {
				k.data[h.Channel] = &bytes.Buffer{}
			}
			k.data[h.Channel].Write(payload)
		}
		if !k.manual && k.position-k.credited >= k.window/4 {
			k.grant()
		}
	case wire.End:
		k.ends[h.Channel] = true
	case wire.Credit:
		k.taken = position
		k.push()
	case wire.Resumed:
		if payload[0] == 0 {
			k.unknown++
			k.d.write(k.request)
			k.sent = 0
		} else {
			k.resumed++
			k.sent = int64(binary.BigEndian.Uint64(payload[1:]))
		}
		k.response = nil
		k.push()
	}
}

func (k *talk) grant() {
	k.credited = k.position
	k.d.write(wire.AppendPositioned(nil, wire.Credit, 0, k.id, k.position, nil))
}

// push sends as much input as the runner's window allows.
func (k *talk) push() {
	const window = 512 << 10
	for k.sent >= 0 && k.sent < int64(len(k.input)) && k.sent-k.taken < window {
		n := min(int64(wire.MaxData), int64(len(k.input))-k.sent)
		k.d.write(wire.AppendPositioned(nil, wire.Data, 0, k.id, k.sent, k.input[k.sent:k.sent+n]))
		k.sent += n
	}
	if k.sent == int64(len(k.input)) && k.inputEnd {
		k.d.write(wire.AppendPositioned(nil, wire.End, 0, k.id, k.sent, nil))
	}
}

// send gives input; end says that it is all.
func (k *talk) send(data []byte, end bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.input = append(k.input, data...)
	k.inputEnd = k.inputEnd || end
	k.push()
	k.changed.Broadcast()
}

type params = map[string]any

func encodeRequest(id uint64, method string, p any, window int64) []byte {
	encoded, err := json.Marshal(p)
	if err != nil {
		panic(err)
	}
	payload, err := json.Marshal(wire.RequestMessage{Method: method, Params: encoded, Window: window})
	if err != nil {
		panic(err)
	}
	var frames []byte
	for len(payload) > wire.MaxPayload {
		frames = wire.AppendFrame(frames, wire.Request, wire.More, id, payload[:wire.MaxPayload])
		payload = payload[wire.MaxPayload:]
	}
	return wire.AppendFrame(frames, wire.Request, 0, id, payload)
}

func newTalk(d *driver, id uint64) *talk {
	k := &talk{d: d, id: id, data: map[uint16]*bytes.Buffer{}, ends: map[uint16]bool{}, window: 1 << 20}
	k.changed = sync.NewCond(&k.mu)
	return k
}

func (d *driver) begin(method string, p any, window int64) *talk {
	d.mu.Lock()
	d.next++
	k := newTalk(d, d.next)
	k.window = window
	d.talks[k.id] = k
	d.mu.Unlock()
	k.request = encodeRequest(k.id, method, p, window)
	d.write(k.request)
	return k
}

// until waits for a condition on the conversation.
func (k *talk) until(what string, ok func() bool) {
	k.d.t.Helper()
	timer := time.AfterFunc(patience, k.changed.Broadcast)
	defer timer.Stop()
	deadline := time.Now().Add(patience)
	k.mu.Lock()
	defer k.mu.Unlock()
	for !ok() {
		if time.Now().After(deadline) {
			k.d.t.Fatalf("id %d: %s did not happen", k.id, what)
		}
		k.changed.Wait()
	}
}

func (k *talk) ack() {
	k.d.mu.Lock()
	delete(k.d.talks, k.id)
	k.d.mu.Unlock()
	k.d.write(wire.AppendFrame(nil, wire.Ack, 0, k.id, nil))
}

func (k *talk) cancel() { k.d.write(wire.AppendFrame(nil, wire.Cancel, 0, k.id, nil)) }

// finish waits for the response, acknowledges it and decodes the result.
func (k *talk) finish(into any) *wire.Error {
	k.d.t.Helper()
	k.until("the response", func() bool { return k.done })
	k.ack()
	var m struct {
		Result json.RawMessage
		Error  *wire.Error
	}
	if err := json.Unmarshal(k.response, &m); err != nil {
		k.d.t.Fatalf("response %q: %v", k.response, err)
	}
	if m.Error == nil && into != nil {
		if err := json.Unmarshal(m.Result, into); err != nil {
			k.d.t.Fatalf("result %s: %v", m.Result, err)
		}
	}
	return m.Error
}

func (k *talk) bytes(channel uint16) []byte {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.data[channel] == nil {
		return nil
	}
	return k.data[channel].Bytes()
}

// call is begin and finish for a method that must succeed.
func (d *driver) call(method string, p any, into any) *talk {
	d.t.Helper()
	k := d.begin(method, p, 1<<20)
	if e := k.finish(into); e != nil {
		d.t.Fatalf("%s: %v", method, e)
	}
	return k
}

// fails is a call that must give an error of a kind.
func (d *driver) fails(kind, method string, p any) *wire.Error {
	d.t.Helper()
	e := d.begin(method, p, 1<<20).finish(nil)
	if e == nil || e.Kind != kind {
		d.t.Fatalf("%s: %+v, expected the kind %s", method, e, kind)
	}
	return e
}

type kept struct{ Total, Head, Tail int64 }

type exit struct {
	ExitCode  int     `json:"exit_code"`
	Signal    *int    `json:"signal"`
	TimedOut  bool    `json:"timed_out"`
	Canceled  bool    `json:"canceled"`
	DurationS float64 `json:"duration_s"`
	Stdout    kept
	Stderr    kept
	Merged    *kept
	Segments  [][2]int64
	Spill     *string `json:"spill_path"`
	Killed    *struct{ Found, Killed, Left int }
	Started   bool
	Reason    *string
	Cwd       *string
}

func (d *driver) slot(name string) map[string]any {
	d.t.Helper()
	var facts map[string]any
	// With a root of its own: without one the end of a slot would look through all directories of this machine.
	d.call("slot.create", params{"slot": name, "level": "auto", "floor": "none", "network": true, "private_root": true},
		&facts)
	return facts
}

func shell(slot, text string) params {
	return params{"slot": slot, "shell": text, "stdin": false, "output_limit_bytes": 1 << 20, "merge_stderr": false,
		"stream": false}
}

// sh runs shell text to its end.
func (d *driver) sh(slot, text string) (exit, string, string) {
	d.t.Helper()
	var e exit
	k := d.call("exec.run", shell(slot, text), &e)
	return e, string(k.bytes(1)), string(k.bytes(2))
}
