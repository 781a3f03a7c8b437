package testdriver

import (
	"bytes"
	"crypto/rand"
	"encoding/base64"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"log"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"hermes-exec/runner/internal/agent"
	"hermes-exec/runner/internal/channel"
	"hermes-exec/runner/internal/initproc"
	"hermes-exec/runner/internal/isolation"
	"hermes-exec/runner/internal/serve"
	"hermes-exec/runner/internal/slots"
	"hermes-exec/runner/internal/testsandbox"
	"hermes-exec/runner/internal/wire"
)

// Timeout is how long any step of a test may take.
const Timeout = 60 * time.Second

// Main makes the test program its own agent, and runs the tests.
func Main(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == "agent" {
		os.Exit(agent.Main(os.Args[2:]))
	}
	testsandbox.Enter()
	// Directories that a slot's user may not enter would be in the way.
	_ = os.Setenv("PATH", "/usr/local/bin:/usr/bin:/bin")
	initproc.Init(initproc.Options{Threads: 8, Subreaper: true})
	initproc.HandleSignals()
	initproc.ReapOrphans()
	os.Exit(m.Run())
}

// Probe returns the facts of this machine. It runs the trials once.
var Probe = sync.OnceValue(func() isolation.Facts {
	facts, err := isolation.Probe()
	if err != nil {
		panic(err)
	}
	return facts
})

// PassableDir returns a directory that a slot's user can reach.
func PassableDir(t testing.TB) string {
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

// Sandbox is a serving runner under test.
type Sandbox struct {
	T      testing.TB
	Server *serve.Server
	Base   string
	Ended  chan struct{}
}

// NewSandbox starts a runner with a lease.
func NewSandbox(t testing.TB, lease time.Duration) *Sandbox {
	t.Helper()
	b := &Sandbox{T: t, Base: PassableDir(t)}
	b.Start(lease)
	return b
}

// Start starts the runner of a sandbox, also for a second time.
func (b *Sandbox) Start(lease time.Duration) {
	b.T.Helper()
	b.Ended = make(chan struct{})
	manager, err := slots.NewManager(b.Base, Probe(), os.Args[0])
	if err != nil {
		b.T.Fatal(err)
	}
	var logger *log.Logger
	if testing.Verbose() {
		logger = log.New(os.Stderr, "", log.Lmicroseconds)
	}
	b.Server, err = serve.New(serve.Config{Base: b.Base, Lease: lease, Slots: manager, Isolation: Probe(),
		Version: "test", Log: logger})
	if err != nil {
		b.T.Fatal(err)
	}
	go func() {
		defer close(b.Ended)
		if err := b.Server.Run(); err != nil {
			b.T.Error(err)
		}
	}()
	b.T.Cleanup(func() {
		b.Server.End("shutdown", "test over")
		b.WaitEnd(Timeout)
	})
}

// WaitEnd waits for the end of the runner.
func (b *Sandbox) WaitEnd(limit time.Duration) {
	select {
	case <-b.Ended:
	case <-time.After(limit):
		b.T.Error("the server did not end")
	}
}

// Dial returns one end of a socket pair whose other end the server serves.
func (b *Sandbox) Dial() net.Conn {
	b.T.Helper()
	fds, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM, 0)
	if err != nil {
		b.T.Fatal(err)
	}
	ends := make([]net.Conn, 2)
	for i, fd := range fds {
		f := os.NewFile(uintptr(fd), "pair")
		if ends[i], err = net.FileConn(f); err != nil {
			b.T.Fatal(err)
		}
		f.Close()
	}
	go b.Server.Endpoint.Serve(ends[1])
	return ends[0]
}

// Driver is a small client of the protocol that keeps its conversations over several streams.
type Driver struct {
	T      testing.TB
	Key    []byte
	BootID string

	Mu     sync.Mutex
	Conn   net.Conn
	Next   uint64
	Talks  map[uint64]*Talk
	Bye    chan wire.GoodbyeMessage
	Closed chan struct{} // the reader of the present stream has ended
	Facts  map[string]any
	Echoes int
}

// Talk is a conversation.
type Talk struct {
	D  *Driver
	ID uint64

	Mu       sync.Mutex
	Changed  *sync.Cond
	Request  []byte
	Data     map[uint16]*bytes.Buffer
	Ends     map[uint16]bool
	Events   []map[string]any
	Position int64
	Credited int64
	Window   int64
	Manual   bool // the test grants credit
	Response []byte
	Done     bool
	Input    []byte // all input so far
	Taken    int64  // credit from the runner
	Sent     int64
	InputEnd bool
	Resumed  int // how often RESUMED came with known 1
	Unknown  int
}

// NewDriver makes a driver that has claimed nothing yet.
func NewDriver(t testing.TB) *Driver {
	key := make([]byte, wire.KeySize)
	_, _ = rand.Read(key)
	return &Driver{T: t, Key: key, Talks: map[uint64]*Talk{}}
}

// Open makes a sandbox, and a driver that has claimed it.
func Open(t testing.TB) (*Sandbox, *Driver) {
	t.Helper()
	b := NewSandbox(t, time.Minute)
	d := NewDriver(t)
	if err := d.Attach(b.Dial(), 60); err != nil {
		t.Fatal(err)
	}
	return b, d
}

// Frame is a frame with its payload.
type Frame struct {
	wire.Header
	Payload []byte
}

// ReadFrame reads the next frame.
func ReadFrame(r *wire.Reader) (Frame, error) {
	h, payload, err := r.Next()
	return Frame{h, bytes.Clone(payload)}, err
}

// ErrRefused is the end of a stream that the runner refuses.
var ErrRefused = errors.New("refused")

// Handshake does the handshake on a connection.
func (d *Driver) Handshake(conn net.Conn, r *wire.Reader, leaseS float64) error {
	nonce := make([]byte, wire.NonceSize)
	_, _ = rand.Read(nonce)
	hello := wire.HelloMessage{Versions: []int{1}, Nonce: hex.EncodeToString(nonce), LeaseS: leaseS, Client: "test",
		BootID: d.BootID}
	if d.BootID == "" {
		hello.Claim = hex.EncodeToString(d.Key)
	}
	if err := WriteJSON(conn, wire.Hello, hello); err != nil {
		return err
	}
	f, err := ReadFrame(r)
	if err != nil {
		return err
	}
	if f.Type == wire.Goodbye {
		return fmt.Errorf("%w: %s", ErrRefused, f.Payload)
	}
	var welcome wire.WelcomeMessage
	if err := json.Unmarshal(f.Payload, &welcome); err != nil || f.Type != wire.Welcome {
		return fmt.Errorf("frame %d instead of WELCOME: %s", f.Type, f.Payload)
	}
	if d.BootID != "" {
		theirs, err := hex.DecodeString(welcome.Nonce)
		if err != nil {
			return err
		}
		if want := hex.EncodeToString(wire.Prove(d.Key, "runner", nonce, theirs, d.BootID)); welcome.Proof != want {
			return fmt.Errorf("the runner's proof is wrong")
		}
		proof := wire.ProofMessage{Proof: hex.EncodeToString(wire.Prove(d.Key, "driver", nonce, theirs, d.BootID))}
		if err := WriteJSON(conn, wire.Proof, proof); err != nil {
			return err
		}
	}
	if f, err = ReadFrame(r); err != nil {
		return err
	}
	if f.Type != wire.Ready {
		return fmt.Errorf("%w: frame %d instead of READY: %s", ErrRefused, f.Type, f.Payload)
	}
	d.BootID = welcome.BootID
	return json.Unmarshal(f.Payload, &d.Facts)
}

// WriteJSON writes a message of the handshake.
func WriteJSON(conn net.Conn, t wire.Type, message any) error {
	payload, err := json.Marshal(message)
	if err != nil {
		return err
	}
	_, err = conn.Write(wire.AppendFrame(nil, t, 0, 0, payload))
	return err
}

// Attach opens a stream and resumes unfinished conversations.
func (d *Driver) Attach(conn net.Conn, leaseS float64) error {
	r := wire.NewReader(conn)
	_ = conn.SetDeadline(time.Now().Add(Timeout))
	if err := d.Handshake(conn, r, leaseS); err != nil {
		conn.Close()
		return err
	}
	_ = conn.SetDeadline(time.Time{})
	d.Mu.Lock()
	d.Conn, d.Bye, d.Closed = conn, make(chan wire.GoodbyeMessage, 1), make(chan struct{})
	var resume []*Talk
	for _, k := range d.Talks {
		resume = append(resume, k)
	}
	bye, closed := d.Bye, d.Closed
	d.Mu.Unlock()
	go d.read(r, bye, closed)
	for _, k := range resume {
		k.Mu.Lock()
		if !k.Done {
			k.Sent = -1 // until RESUMED returns the position
			d.Write(wire.AppendPositioned(nil, wire.Resume, 0, k.ID, k.Position, nil))
			if k.Credited > 0 {
				d.Write(wire.AppendPositioned(nil, wire.Credit, 0, k.ID, k.Credited, nil))
			}
		}
		k.Mu.Unlock()
	}
	d.T.Cleanup(func() { conn.Close() })
	return nil
}

// Cut breaks the stream and waits until nothing more is read from it.
func (d *Driver) Cut() {
	d.Mu.Lock()
	conn, closed := d.Conn, d.Closed
	d.Mu.Unlock()
	conn.Close()
	<-closed
}

// Write writes a frame; one for a broken stream is lost.
func (d *Driver) Write(frame []byte) {
	d.Mu.Lock()
	conn := d.Conn
	d.Mu.Unlock()
	_, _ = conn.Write(frame)
}

func (d *Driver) read(r *wire.Reader, bye chan<- wire.GoodbyeMessage, closed chan<- struct{}) {
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
			d.Mu.Lock()
			d.Echoes++
			d.Mu.Unlock()
			continue
		}
		d.Mu.Lock()
		k := d.Talks[h.ID]
		d.Mu.Unlock()
		if k == nil {
			d.T.Errorf("frame type %d for unknown id %d", h.Type, h.ID)
			continue
		}
		k.handle(h, payload)
	}
}

func (k *Talk) handle(h wire.Header, payload []byte) {
	k.Mu.Lock()
	defer k.Mu.Unlock()
	defer k.Changed.Broadcast()
	position := int64(0)
	if h.Type != wire.Response && h.Type != wire.Resumed {
		position = int64(binary.BigEndian.Uint64(payload))
		payload = payload[8:]
	}
	switch h.Type {
	case wire.Response:
		k.Response = append(k.Response, payload...)
		k.Done = h.Flags&wire.More == 0
	case wire.Data, wire.Event:
		if position+int64(len(payload)) <= k.Position {
			return
		}
		if position != k.Position {
			k.D.T.Errorf("id %d: data at %d, expected %d", k.ID, position, k.Position)
		}
		k.Position += int64(len(payload))
		if h.Type == wire.Event {
			var event map[string]any
			_ = json.Unmarshal(payload, &event)
			k.Events = append(k.Events, event)
		} else {
			if k.Data[h.Channel] == nil {
				k.Data[h.Channel] = &bytes.Buffer{}
			}
			k.Data[h.Channel].Write(payload)
		}
		if !k.Manual && k.Position-k.Credited >= k.Window/4 {
			k.Grant()
		}
	case wire.End:
		k.Ends[h.Channel] = true
	case wire.Credit:
		k.Taken = position
		k.Push()
	case wire.Resumed:
		if payload[0] == 0 {
			k.Unknown++
			k.D.Write(k.Request)
			k.Sent = 0
		} else {
			k.Resumed++
			k.Sent = int64(binary.BigEndian.Uint64(payload[1:]))
		}
		k.Response = nil
		k.Push()
	}
}

// Grant grants credit for everything that has arrived.
func (k *Talk) Grant() {
	k.Credited = k.Position
	k.D.Write(wire.AppendPositioned(nil, wire.Credit, 0, k.ID, k.Position, nil))
}

// Push sends as much input as the runner's window allows.
func (k *Talk) Push() {
	const window = 512 << 10
	for k.Sent >= 0 && k.Sent < int64(len(k.Input)) && k.Sent-k.Taken < window {
		n := min(int64(wire.MaxData), int64(len(k.Input))-k.Sent)
		k.D.Write(wire.AppendPositioned(nil, wire.Data, 0, k.ID, k.Sent, k.Input[k.Sent:k.Sent+n]))
		k.Sent += n
	}
	if k.Sent == int64(len(k.Input)) && k.InputEnd {
		k.D.Write(wire.AppendPositioned(nil, wire.End, 0, k.ID, k.Sent, nil))
	}
}

// Send adds input; end marks its end.
func (k *Talk) Send(data []byte, end bool) {
	k.Mu.Lock()
	defer k.Mu.Unlock()
	k.Input = append(k.Input, data...)
	k.InputEnd = k.InputEnd || end
	k.Push()
	k.Changed.Broadcast()
}

// Params are the params of a request.
type Params = map[string]any

// EncodeRequest returns the frames of a request.
func EncodeRequest(id uint64, method string, p any, window int64) []byte {
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

// NewTalk makes a conversation that has not begun.
func NewTalk(d *Driver, id uint64) *Talk {
	k := &Talk{D: d, ID: id, Data: map[uint16]*bytes.Buffer{}, Ends: map[uint16]bool{}, Window: 1 << 20}
	k.Changed = sync.NewCond(&k.Mu)
	return k
}

// Begin sends a request.
func (d *Driver) Begin(method string, p any, window int64) *Talk {
	d.Mu.Lock()
	d.Next++
	k := NewTalk(d, d.Next)
	k.Window = window
	d.Talks[k.ID] = k
	d.Mu.Unlock()
	k.Request = EncodeRequest(k.ID, method, p, window)
	d.Write(k.Request)
	return k
}

// Until waits for a condition on the conversation.
func (k *Talk) Until(what string, ok func() bool) {
	k.D.T.Helper()
	timer := time.AfterFunc(Timeout, k.Changed.Broadcast)
	defer timer.Stop()
	deadline := time.Now().Add(Timeout)
	k.Mu.Lock()
	defer k.Mu.Unlock()
	for !ok() {
		if time.Now().After(deadline) {
			k.D.T.Fatalf("id %d: %s did not happen", k.ID, what)
		}
		k.Changed.Wait()
	}
}

// Ack acknowledges the response.
func (k *Talk) Ack() {
	k.D.Mu.Lock()
	delete(k.D.Talks, k.ID)
	k.D.Mu.Unlock()
	k.D.Write(wire.AppendFrame(nil, wire.Ack, 0, k.ID, nil))
}

// Cancel cancels the conversation.
func (k *Talk) Cancel() { k.D.Write(wire.AppendFrame(nil, wire.Cancel, 0, k.ID, nil)) }

// Finish waits for the response, acknowledges it and decodes the result.
func (k *Talk) Finish(into any) *wire.Error {
	k.D.T.Helper()
	k.Until("the response", func() bool { return k.Done })
	k.Ack()
	var m struct {
		Result json.RawMessage
		Error  *wire.Error
	}
	if err := json.Unmarshal(k.Response, &m); err != nil {
		k.D.T.Fatalf("response %q: %v", k.Response, err)
	}
	if m.Error == nil && into != nil {
		if err := json.Unmarshal(m.Result, into); err != nil {
			k.D.T.Fatalf("result %s: %v", m.Result, err)
		}
	}
	return m.Error
}

// Bytes returns the data of a channel so far.
func (k *Talk) Bytes(channel uint16) []byte {
	k.Mu.Lock()
	defer k.Mu.Unlock()
	if k.Data[channel] == nil {
		return nil
	}
	return k.Data[channel].Bytes()
}

// Call is Begin and Finish for a method that must succeed.
func (d *Driver) Call(method string, p any, into any) *Talk {
	d.T.Helper()
	k := d.Begin(method, p, 1<<20)
	if e := k.Finish(into); e != nil {
		d.T.Fatalf("%s: %v", method, e)
	}
	return k
}

// Fails is Call for a method that must return an error of a kind.
func (d *Driver) Fails(kind, method string, p any) *wire.Error {
	d.T.Helper()
	e := d.Begin(method, p, 1<<20).Finish(nil)
	if e == nil || e.Kind != kind {
		d.T.Fatalf("%s: %+v, expected the kind %s", method, e, kind)
	}
	return e
}

// Kept is the sizes of a kept output.
type Kept struct{ Total, Head, Tail int64 }

// Exit is Exit of docs/protocol.md.
type Exit struct {
	ExitCode  int     `json:"exit_code"`
	Signal    *int    `json:"signal"`
	TimedOut  bool    `json:"timed_out"`
	Canceled  bool    `json:"canceled"`
	DurationS float64 `json:"duration_s"`
	Stdout    Kept
	Stderr    Kept
	Merged    *Kept
	Segments  [][2]int64
	Spill     *string `json:"spill_path"`
	Killed    *struct{ Found, Killed, Left int }
	Started   bool
	Reason    *string
	Cwd       *string
}

// Slot makes a slot and returns its facts.
func (d *Driver) Slot(name string) map[string]any {
	d.T.Helper()
	var facts map[string]any
	// With a private root: otherwise the end of a slot would search all directories of this
	// machine.
	d.Call("slot.create", Params{"slot": name, "level": "auto", "floor": "none", "network": true, "private_root": true},
		&facts)
	return facts
}

// Shell returns the params that run shell text.
func Shell(slot, text string) Params {
	return Params{"slot": slot, "shell": text, "stdin": false, "output_limit_bytes": 1 << 20, "merge_stderr": false,
		"stream": false}
}

// Sh runs shell text to its end.
func (d *Driver) Sh(slot, text string) (Exit, string, string) {
	d.T.Helper()
	var e Exit
	k := d.Call("exec.run", Shell(slot, text), &e)
	return e, string(k.Bytes(1)), string(k.Bytes(2))
}

// Reopen attaches a new stream of the same driver.
func (d *Driver) Reopen(b *Sandbox) {
	d.T.Helper()
	if err := d.Attach(b.Dial(), 60); err != nil {
		d.T.Fatal(err)
	}
}

// Put writes a file.
func (d *Driver) Put(slot, path string, content []byte) {
	d.T.Helper()
	k := d.Begin("file.write", Params{"slot": slot, "path": path, "parents": true, "append": false}, 1<<20)
	go k.Send(content, true)
	var r struct{ Written int64 }
	if err := k.Finish(&r); err != nil || r.Written != int64(len(content)) {
		d.T.Fatal(err, r)
	}
}

// Spawn starts a process.
func (d *Driver) Spawn(p Params) (id string, pid int) {
	d.T.Helper()
	var r struct {
		Process string
		PID     int
	}
	d.Call("proc.spawn", p, &r)
	return r.Process, r.PID
}

// Wait returns the exit of a process that ends.
func (d *Driver) Wait(id string) Exit {
	d.T.Helper()
	var r struct{ Exit *Exit }
	d.Call("proc.wait", Params{"process": id}, &r)
	if r.Exit == nil {
		d.T.Fatal("no exit")
	}
	return *r.Exit
}

// Log reads the output of a process.
func (d *Driver) Log(id string, stream int, offset, limit int64) ([]byte, map[string]any) {
	d.T.Helper()
	var r map[string]any
	k := d.Call("proc.read", Params{"process": id, "stream": stream, "offset": offset, "limit": limit}, &r)
	return k.Bytes(1), r
}

// Look begins slot.view and waits until it shows output.
func (d *Driver) Look(slot string, window int64) *Talk {
	d.T.Helper()
	k := d.Begin("slot.view", Params{"slot": slot}, window)
	k.Until("viewing", func() bool { return len(k.Events) > 0 })
	return k
}

// CountEvents counts events of a kind.
func (k *Talk) CountEvents(kind string) int {
	n := 0
	for _, e := range k.Events {
		if e["event"] == kind {
			n++
		}
	}
	return n
}

// Output returns the output of a stream in the events.
func (k *Talk) Output(stream float64) string {
	var all strings.Builder
	for _, e := range k.Events {
		if e["event"] == "output" && e["stream"] == stream {
			data, err := base64.StdEncoding.DecodeString(e["data"].(string))
			if err != nil {
				k.D.T.Error(err)
			}
			all.Write(data)
		}
	}
	return all.String()
}

// StartAttach runs `runner attach` on the given descriptors.
func (b *Sandbox) StartAttach(in, out *os.File) <-chan error {
	result := make(chan error, 1)
	copies := make([]*os.File, 2)
	for i, f := range []*os.File{in, out} {
		fd, err := syscall.Dup(int(f.Fd()))
		if err != nil {
			b.T.Fatal(err)
		}
		copies[i] = os.NewFile(uintptr(fd), f.Name())
	}
	go func() {
		defer copies[0].Close()
		defer copies[1].Close()
		result <- channel.Attach(b.Base, copies[0], copies[1])
	}()
	return result
}
