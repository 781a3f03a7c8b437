package serve_test

import (
	"bytes"
	"encoding/json"
	"io"
	"os"
	"slices"
	"sync"
	"testing"
	"time"

	"hermes-exec/runner/internal/serve"
	"hermes-exec/runner/internal/slots"
	"hermes-exec/runner/internal/testdriver"
	"hermes-exec/runner/internal/wire"
)

const hello = `{"versions":[1],"nonce":"0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a","claim":"` +
	`0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b","lease_s":60}`

// asked are requests that no slot is there for: they are read and checked, and
// nothing is started.
var asked = []string{
	`{"method":"sandbox.info","params":{}}`, `{"method":"slot.reset","params":{"slot":"s0"}}`,
	`{"method":"slot.kill_all","params":{"slot":"s0"}}`,
	`{"method":"slot.processes","params":{"slot":"s0"}}`, `{"method":"slot.view","params":{"slot":"s0"}}`,
	`{"method":"exec.run","params":{"slot":"s0","shell":"true","cwd":"/","env":{"A":{"b64":"/w=="}},"stdin":true,"timeout_s":1.5,"output_limit_bytes":5,"stream":true,"session":"s1"},"window":4096}`,
	`{"method":"exec.run","params":{"slot":"s0","argv":["true",{"b64":"/w=="}],"merge_stderr":true}}`,
	`{"method":"session.open","params":{"slot":"s0","cwd":"/","env":{}}}`,
	`{"method":"session.close","params":{"session":"s1"}}`,
	`{"method":"proc.spawn","params":{"slot":"s0","argv":["cat"],"pty":{"rows":24,"cols":80},"tag":"t"}}`,
	`{"method":"proc.list","params":{"slot":"s0"}}`,
	`{"method":"proc.wait","params":{"slot":"s0","process":"p1","timeout_s":0}}`,
	`{"method":"proc.read","params":{"process":"p1","stream":1,"offset":-5,"limit":10}}`,
	`{"method":"proc.follow","params":{"process":"p1","stream":1,"offset":0}}`,
	`{"method":"proc.write","params":{"process":"p1"}}`,
	`{"method":"proc.signal","params":{"process":"p1","signal":9}}`,
	`{"method":"proc.resize","params":{"process":"p1","rows":1,"cols":1}}`,
	`{"method":"file.read","params":{"slot":"s0","path":"a","offset":0,"length":5}}`,
	`{"method":"file.write","params":{"slot":"s0","path":"a","mode":420}}`,
	`{"method":"file.search","params":{"slot":"s0","pattern":"x"}}`,
	`{"method":"net.listen","params":{"slot":"s0","path":"/tmp/x"}}`,
	`{"method":"net.listen","params":{"slot":"s0","host":"127.0.0.1","port":0}}`,
	`{"method":"net.accept","params":{"slot":"s0","listener":1}}`,
	`{"method":"net.connect","params":{"slot":"s0","host":"localhost","port":80}}`,
}

// kinds are the error kinds of docs/protocol.md for requests without a slot.
var kinds = []string{"bad_request", "stale", "no_slot", "no_process", "no_session", "slot_closed", "canceled",
	"too_large"}

// A driver that has proven itself and sends whatever it likes gets answers of
// the protocol or is sent away, and the next one finds the runner as it was.
func FuzzStream(f *testing.F) {
	var valid []byte
	for i, request := range asked {
		id := uint64(i + 1)
		valid = wire.AppendFrame(valid, wire.Request, 0, id, []byte(request))
		valid = wire.AppendPositioned(valid, wire.Data, 0, id, 0, []byte("input"))
		f.Add(wire.AppendFrame(nil, wire.Request, 0, 1, []byte(request)))
	}
	valid = wire.AppendPositioned(valid, wire.End, 0, 1, 5, nil)
	valid = wire.AppendPositioned(valid, wire.Credit, 0, 1, 0, nil)
	valid = wire.AppendFrame(valid, wire.Cancel, 0, 2, nil)
	valid = wire.AppendFrame(valid, wire.Keepalive, 0, 0, nil)
	valid = wire.AppendPositioned(valid, wire.Resume, 0, 3, 0, nil)
	f.Add(valid)
	f.Add(append(wire.AppendFrame(nil, wire.Request, wire.More, 1, []byte(`{"method":`)),
		wire.AppendFrame(nil, wire.Request, 0, 1, []byte(`"x"}`))...))
	f.Add(wire.AppendFrame(nil, wire.Goodbye, 0, 0, []byte(`{"reason":"detach"}`)))
	manager, err := slots.NewManager(f.TempDir(), testdriver.Probe(), os.Args[0])
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, input []byte) {
		for _, method := range []string{"slot.create", "shutdown"} {
			if bytes.Contains(input, []byte(method)) {
				t.Skip("it would do something")
			}
		}
		server, err := serve.New(serve.Config{Base: "/nowhere", Lease: time.Minute, Slots: manager, Version: "fuzz"})
		if err != nil {
			t.Fatal(err)
		}
		defer server.End("shutdown", "over")
		driver := &scriptedDriver{input: append(wire.AppendFrame(nil, wire.Hello, 0, 0, []byte(hello)), input...)}
		server.Endpoint.Serve(driver)
		driver.check(t)
	})
}

// scriptedDriver sends all of its input at once and listens until nothing arrives for a moment.
type scriptedDriver struct {
	mu     sync.Mutex
	input  []byte
	heard  []byte
	closed bool
}

const moment = 200 * time.Microsecond

func (s *scriptedDriver) Read(p []byte) (int, error) {
	s.mu.Lock()
	n := copy(p, s.input)
	s.input = s.input[n:]
	heard := len(s.heard)
	s.mu.Unlock()
	for n == 0 {
		time.Sleep(moment)
		s.mu.Lock()
		quiet := heard == len(s.heard)
		heard = len(s.heard)
		s.mu.Unlock()
		if quiet {
			return 0, io.EOF
		}
	}
	return n, nil
}

func (s *scriptedDriver) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return 0, io.ErrClosedPipe
	}
	s.heard = append(s.heard, p...)
	return len(p), nil
}

func (s *scriptedDriver) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	return nil
}

// check reads the runner's output: whole frames, and answers of the protocol.
func (s *scriptedDriver) check(t *testing.T) {
	s.mu.Lock()
	defer s.mu.Unlock()
	reader := wire.NewReader(bytes.NewReader(s.heard))
	for {
		h, payload, err := reader.Next()
		if err == io.EOF {
			return
		}
		if err != nil {
			t.Fatal(err)
		}
		if h.Type == wire.Response && h.Flags&wire.More == 0 {
			checkAnswer(t, payload)
		}
	}
}

func checkAnswer(t *testing.T, payload []byte) {
	var answer struct {
		Result json.RawMessage `json:"result"`
		Error  *wire.Error     `json:"error"`
	}
	if err := json.Unmarshal(payload, &answer); err != nil || (answer.Error == nil) == (answer.Result == nil) {
		t.Fatalf("%q: %v", payload, err)
	}
	if answer.Error != nil && !slices.Contains(kinds, answer.Error.Kind) {
		t.Fatalf("%q", payload)
	}
}
