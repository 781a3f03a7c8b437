package channel_test

import (
	"bytes"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"hermes-exec/runner/internal/testdriver"
	"hermes-exec/runner/internal/wire"
)

func TestHandshake(t *testing.T) {
	b, d := testdriver.Open(t)
	if d.Facts["boot_id"] != d.BootID || d.Facts["input_window"].(float64) <= 0 {
		t.Fatal(d.Facts)
	}
	runner := d.Facts["runner"].(map[string]any)
	if runner["pid"].(float64) != float64(os.Getpid()) {
		t.Fatal(runner)
	}
	t.Run("second claim", func(t *testing.T) {
		other := testdriver.NewDriver(t)
		if err := other.Attach(b.Dial(), 60); !errors.Is(err, testdriver.ErrRefused) || !strings.Contains(err.Error(), "denied") {
			t.Fatal(err)
		}
	})
	t.Run("the same claim again", func(t *testing.T) {
		other := testdriver.NewDriver(t)
		other.Key = d.Key
		if err := other.Attach(b.Dial(), 60); err != nil {
			t.Fatal(err)
		}
		if err := d.Attach(b.Dial(), 60); err != nil {
			t.Fatal(err)
		}
	})
	t.Run("wrong key", func(t *testing.T) {
		other := testdriver.NewDriver(t)
		other.BootID = d.BootID
		if err := other.Attach(b.Dial(), 60); err == nil {
			t.Fatal("the proof of another key was believed")
		}
	})
	t.Run("wrong proof", func(t *testing.T) {
		conn := b.Dial()
		defer conn.Close()
		r := wire.NewReader(conn)
		hello := wire.HelloMessage{Versions: []int{1}, Nonce: strings.Repeat("ab", 16), LeaseS: 60}
		_ = testdriver.WriteJSON(conn, wire.Hello, hello)
		if f, err := testdriver.ReadFrame(r); err != nil || f.Type != wire.Welcome {
			t.Fatal(f, err)
		}
		_ = testdriver.WriteJSON(conn, wire.Proof, wire.ProofMessage{Proof: strings.Repeat("00", 32)})
		expectGoodbye(t, r, "denied")
	})
	t.Run("wrong boot id", func(t *testing.T) {
		conn := b.Dial()
		defer conn.Close()
		r := wire.NewReader(conn)
		_ = testdriver.WriteJSON(conn, wire.Hello, wire.HelloMessage{Versions: []int{1}, Nonce: strings.Repeat("ab", 16),
			LeaseS: 60, BootID: "another"})
		f, err := testdriver.ReadFrame(r)
		var m wire.WelcomeMessage
		if err != nil || json.Unmarshal(f.Payload, &m) != nil || m.BootID != d.BootID || m.Proof != "" {
			t.Fatal(f, err)
		}
	})
	t.Run("other version", func(t *testing.T) {
		conn := b.Dial()
		defer conn.Close()
		_ = testdriver.WriteJSON(conn, wire.Hello, wire.HelloMessage{Versions: []int{2, 3}, Nonce: strings.Repeat("ab", 16),
			LeaseS: 60})
		expectGoodbye(t, wire.NewReader(conn), "version")
	})
	// None of it has disturbed the first stream.
	d.Call("sandbox.info", testdriver.Params{}, nil)
}

func expectGoodbye(t *testing.T, r *wire.Reader, reason string) {
	t.Helper()
	for {
		f, err := testdriver.ReadFrame(r)
		if err != nil {
			t.Fatalf("no GOODBYE %s: %v", reason, err)
		}
		if f.Type != wire.Goodbye {
			continue
		}
		var m wire.GoodbyeMessage
		if err := json.Unmarshal(f.Payload, &m); err != nil || m.Reason != reason {
			t.Fatalf("%s, expected %s", f.Payload, reason)
		}
		if _, err := testdriver.ReadFrame(r); !errors.Is(err, io.EOF) {
			t.Fatalf("after GOODBYE: %v", err)
		}
		return
	}
}

func TestRunnerSpeaksSecond(t *testing.T) {
	b := testdriver.NewSandbox(t, time.Minute)
	conn := b.Dial()
	defer conn.Close()
	_ = conn.SetReadDeadline(time.Now().Add(50 * time.Millisecond))
	if n, err := conn.Read(make([]byte, 1)); n != 0 || !os.IsTimeout(err) {
		t.Fatal(n, err)
	}
}

func TestGarbageBeforeTheHandshake(t *testing.T) {
	b, d := testdriver.Open(t)
	random := make([]byte, 100<<10)
	_, _ = rand.Read(random)
	cases := map[string][]byte{
		"random":        random,
		"endless frame": wire.AppendHeader(nil, wire.Header{Length: 1<<32 - 1, Type: wire.Hello}),
		"http":          []byte("GET / HTTP/1.1\r\nHost: x\r\n\r\n"),
		"keepalive":     wire.AppendFrame(nil, wire.Keepalive, 0, 0, nil),
		"request":       testdriver.EncodeRequest(1, "sandbox.shutdown", testdriver.Params{}, 0),
		"bad hello":     wire.AppendFrame(nil, wire.Hello, 0, 0, []byte("{}")),
		"zeros":         make([]byte, 70<<10),
	}
	for name, garbage := range cases {
		t.Run(name, func(t *testing.T) {
			conn := b.Dial()
			defer conn.Close()
			go func() { _, _ = conn.Write(garbage) }()
			_ = conn.SetReadDeadline(time.Now().Add(testdriver.Timeout))
			if _, err := io.Copy(io.Discard, conn); err != nil && os.IsTimeout(err) {
				t.Fatal("the connection stayed open")
			}
		})
	}
	t.Run("many silent connections", func(t *testing.T) {
		var open []net.Conn
		for range 100 {
			open = append(open, b.Dial())
		}
		closed := 0
		for _, c := range open[:60] {
			_ = c.SetReadDeadline(time.Now().Add(testdriver.Timeout))
			if _, err := c.Read(make([]byte, 1)); errors.Is(err, io.EOF) {
				closed++
			}
		}
		if closed < 60 {
			t.Fatalf("%d of the oldest were closed", closed)
		}
		for _, c := range open {
			c.Close()
		}
	})
	d.Call("sandbox.info", testdriver.Params{}, nil)
}

func TestForbiddenFramesEndTheStream(t *testing.T) {
	cases := map[string][]byte{
		"hello again":          wire.AppendFrame(nil, wire.Hello, 0, 0, []byte("{}")),
		"response from driver": wire.AppendFrame(nil, wire.Response, 0, 1, []byte("{}")),
		"data never requested": wire.AppendPositioned(nil, wire.Data, 0, 999, 0, []byte("x")),
		"oversized frame": wire.AppendHeader(nil,
			wire.Header{Length: wire.MaxPayload + 1, Type: wire.Data, ID: 1}),
		"unknown type":      wire.AppendHeader(nil, wire.Header{Type: 77, ID: 1}),
		"cancel never seen": wire.AppendFrame(nil, wire.Cancel, 0, 55, nil),
	}
	for name, frames := range cases {
		t.Run(name, func(t *testing.T) {
			b, d := testdriver.Open(t)
			d.Write(frames)
			select {
			case m := <-d.Bye:
				if m.Reason != "protocol" {
					t.Fatal(m)
				}
			case <-time.After(testdriver.Timeout):
				t.Fatal("no GOODBYE")
			}
			<-d.Closed
			d.Reopen(b)
			d.Call("sandbox.info", testdriver.Params{}, nil)
		})
	}
}

func TestForbiddenPositions(t *testing.T) {
	cases := map[string]func(k *testdriver.Talk) []byte{
		"credit beyond sent": func(k *testdriver.Talk) []byte {
			return wire.AppendPositioned(nil, wire.Credit, 0, k.ID, 1<<40,
				nil)
		},
		"data with a hole": func(k *testdriver.Talk) []byte {
			return wire.AppendPositioned(nil, wire.Data, 0, k.ID, 5,
				[]byte("x"))
		},
		"end ahead": func(k *testdriver.Talk) []byte { return wire.AppendPositioned(nil, wire.End, 0, k.ID, 9, nil) },
		"input on channel 3": func(k *testdriver.Talk) []byte {
			return wire.AppendPositioned(nil, wire.Data, 3, k.ID, 0,
				[]byte("x"))
		},
		"resume beyond sent": func(k *testdriver.Talk) []byte {
			return wire.AppendPositioned(nil, wire.Resume, 0, k.ID, 1<<40,
				nil)
		},
		"early ack": func(k *testdriver.Talk) []byte { return wire.AppendFrame(nil, wire.Ack, 0, k.ID, nil) },
		"beyond the window": func(k *testdriver.Talk) []byte {
			var all []byte
			for at := 0; at < 1<<20; at += wire.MaxData {
				all = wire.AppendPositioned(all, wire.Data, 0, k.ID, int64(at), make([]byte, wire.MaxData))
			}
			return all
		},
	}
	for name, frames := range cases {
		t.Run(name, func(t *testing.T) {
			_, d := testdriver.Open(t)
			d.Slot("s")
			p := testdriver.Shell("s", "sleep 100")
			p["stdin"] = true
			k := d.Begin("exec.run", p, 1<<20)
			k.Until("the start", func() bool { return len(k.Events) == 1 })
			go d.Write(frames(k))
			select {
			case m := <-d.Bye:
				if m.Reason != "protocol" {
					t.Fatal(m)
				}
			case <-time.After(testdriver.Timeout):
				t.Fatal("no GOODBYE")
			}
		})
	}
}

func TestKeepaliveIsAnswered(t *testing.T) {
	_, d := testdriver.Open(t)
	for range 3 {
		d.Write(wire.AppendFrame(nil, wire.Keepalive, 0, 0, nil))
	}
	d.Call("sandbox.info", testdriver.Params{}, nil)
	d.Mu.Lock()
	defer d.Mu.Unlock()
	if d.Echoes != 3 {
		t.Fatal(d.Echoes)
	}
}

func TestNewerStreamWins(t *testing.T) {
	b, d := testdriver.Open(t)
	d.Slot("s")
	k := d.Begin("exec.run", testdriver.Shell("s", "sleep 0.3; echo done"), 1<<20)
	k.Until("the start", func() bool { return len(k.Events) == 1 })
	bye, closed := d.Bye, d.Closed
	d.Reopen(b)
	select {
	case m := <-bye:
		if m.Reason != "replaced" {
			t.Fatal(m)
		}
	case <-time.After(testdriver.Timeout):
		t.Fatal("the older stream was not told")
	}
	<-closed
	var e testdriver.Exit
	if err := k.Finish(&e); err != nil || e.ExitCode != 0 || string(k.Bytes(1)) != "done\n" || k.Resumed != 1 {
		t.Fatalf("%v %+v %q %d", err, e, k.Bytes(1), k.Resumed)
	}
}

func TestEachRequestRunsOnce(t *testing.T) {
	_, d := testdriver.Open(t)
	d.Slot("s")
	k := d.Begin("exec.run", testdriver.Shell("s", "echo ran >> count; sleep 0.2; cat count"), 1<<20)
	d.Write(k.Request) // again while it runs
	k.Until("the response", func() bool { return k.Done })
	k.Mu.Lock()
	k.Done, k.Response = false, nil
	k.Mu.Unlock()
	d.Write(k.Request) // again when it is over
	k.Until("the response again", func() bool { return k.Done })
	var e testdriver.Exit
	if err := k.Finish(&e); err != nil || string(k.Bytes(1)) != "ran\n" {
		t.Fatalf("%v %q", err, k.Bytes(1))
	}
	// After the acknowledgement the id is stale.
	d.Mu.Lock()
	d.Talks[k.ID] = k
	d.Mu.Unlock()
	k.Mu.Lock()
	k.Done, k.Response = false, nil
	k.Mu.Unlock()
	d.Write(k.Request)
	if err := k.Finish(nil); err == nil || err.Kind != "stale" {
		t.Fatal(err)
	}
}

func TestIdsOutOfOrder(t *testing.T) {
	_, d := testdriver.Open(t)
	d.Mu.Lock()
	d.Next = 10
	d.Mu.Unlock()
	d.Call("sandbox.info", testdriver.Params{}, nil)
	d.Mu.Lock()
	d.Next = 4 // sent again after a reconnect that lost it
	d.Mu.Unlock()
	d.Call("sandbox.info", testdriver.Params{}, nil)
}

// cutting breaks the stream over and over while a command sends and receives.
func TestCutStreamLosesNothing(t *testing.T) {
	b, d := testdriver.Open(t)
	d.Slot("s")
	input := make([]byte, 8<<20)
	_, _ = rand.Read(input)
	p := testdriver.Shell("s", "echo once >> count; cat")
	p["stdin"], p["stream"], p["output_limit_bytes"] = true, true, 1000
	k := d.Begin("exec.run", p, 256<<10)
	k.Send(input, true)
	for cuts := 1; cuts <= 6; cuts++ {
		k.Until("progress", func() bool { return k.Done || k.Position > int64(cuts)*(1<<20) })
		d.Cut()
		d.Reopen(b)
	}
	var e testdriver.Exit
	if err := k.Finish(&e); err != nil || e.ExitCode != 0 {
		t.Fatal(err, e)
	}
	if got := k.Bytes(5); !bytes.Equal(got, input) {
		t.Fatalf("%d bytes came back, of %d", len(got), len(input))
	}
	if k.Resumed == 0 {
		t.Fatal("nothing was resumed")
	}
	if _, out, _ := d.Sh("s", "cat count"); out != "once\n" {
		t.Fatalf("%q", out)
	}
}

func TestRequestLostWithTheStream(t *testing.T) {
	b, d := testdriver.Open(t)
	d.Slot("s")
	d.Cut()
	k := d.Begin("exec.run", testdriver.Shell("s", "echo once >> count; cat count"), 1<<20)
	d.Reopen(b)
	if err := k.Finish(nil); err != nil || k.Unknown != 1 || string(k.Bytes(1)) != "once\n" {
		t.Fatal(err, k.Unknown)
	}
}

func TestResponseIsKeptUntilAcknowledged(t *testing.T) {
	b, d := testdriver.Open(t)
	d.Slot("s")
	k := d.Begin("exec.run", testdriver.Shell("s", "sleep 0.1; seq 100000"), 1<<20)
	k.Until("the start", func() bool { return len(k.Events) == 1 })
	d.Cut()
	time.Sleep(300 * time.Millisecond) // it ends meanwhile
	d.Reopen(b)
	var e testdriver.Exit
	if err := k.Finish(&e); err != nil || e.ExitCode != 0 || e.Stdout.Total != 588895 || len(k.Bytes(1)) != 588895 {
		t.Fatalf("%v %+v %d", err, e, len(k.Bytes(1)))
	}
}

func TestLongRequests(t *testing.T) {
	_, d := testdriver.Open(t)
	d.Slot("s")
	text := "x='" + strings.Repeat("y", 10<<20) + "'; echo ${#x}"
	var e testdriver.Exit
	k := d.Call("exec.run", testdriver.Shell("s", text), &e)
	if got := string(k.Bytes(1)); got != fmt.Sprintln(10<<20) {
		t.Fatalf("%q %+v %q", got, e, k.Bytes(2))
	}
	if err := d.Begin("exec.run", testdriver.Shell("s", strings.Repeat("y", 33<<20)), 1<<20).Finish(nil); err == nil ||
		err.Kind != "too_large" {
		t.Fatal(err)
	}
	d.Call("sandbox.info", testdriver.Params{}, nil)
}

// A driver that does not read one conversation still gets the others.
func TestFloodDelaysNobody(t *testing.T) {
	_, d := testdriver.Open(t)
	d.Slot("s")
	p := testdriver.Shell("s", "yes")
	p["stream"] = true
	var floods []*testdriver.Talk
	for range 4 {
		k := d.Begin("exec.run", p, 1<<20)
		k.Mu.Lock()
		k.Manual = true
		k.Mu.Unlock()
		floods = append(floods, k)
	}
	for _, k := range floods {
		k.Until("a full window", func() bool { return k.Position >= 1<<20 })
	}
	free := d.Begin("exec.run", p, 1<<20) // this one is read as fast as it comes
	slowest := time.Duration(0)
	for range 50 {
		begun := time.Now()
		d.Call("sandbox.info", testdriver.Params{}, nil)
		slowest = max(slowest, time.Since(begun))
	}
	if slowest > 20*time.Second {
		t.Fatalf("an answer took %v beside a flood", slowest)
	}
	for _, k := range append(floods, free) {
		k.Mu.Lock()
		if k.Manual && k.Position > (1<<20)+2*wire.MaxData {
			t.Errorf("%d bytes were sent without credit", k.Position)
		}
		k.Manual = false
		k.Grant()
		k.Mu.Unlock()
		k.Cancel()
	}
	for _, k := range append(floods, free) {
		var e testdriver.Exit
		if err := k.Finish(&e); err != nil || !e.Canceled {
			t.Fatal(err, e)
		}
	}
}

// slowReady is a stream whose READY reaches its driver long before the runner
// knows that it was written.
type slowReady struct {
	net.Conn
	writes  int
	written chan struct{}
	release chan struct{}
}

func (c *slowReady) Write(p []byte) (int, error) {
	n, err := c.Conn.Write(p)
	if c.writes++; c.writes == 2 { // after WELCOME
		close(c.written)
		<-c.release
	}
	return n, err
}

func TestAStreamThatWasGivenUpDoesNotTakeThePlaceOfANewerOne(t *testing.T) {
	b, d := testdriver.Open(t)
	ours, theirs := net.Pipe()
	slow := &slowReady{Conn: theirs, written: make(chan struct{}), release: make(chan struct{})}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		b.Server.Endpoint.Serve(slow)
	}()
	if err := d.Handshake(ours, wire.NewReader(ours), 60); err != nil {
		t.Fatal(err)
	}
	<-slow.written
	ours.Close()
	d.Cut()
	if err := d.Attach(b.Dial(), 60); err != nil {
		t.Fatal(err)
	}
	close(slow.release)
	<-ended
	d.Call("sandbox.info", testdriver.Params{}, nil)
}
