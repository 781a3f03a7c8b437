package serve_test

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

	"hermes-exec/runner/internal/wire"
)

// reopen attaches a new stream of the same driver.
func (d *driver) reopen(b *box) {
	d.t.Helper()
	if err := d.attach(b.dial(), 60); err != nil {
		d.t.Fatal(err)
	}
}

func TestHandshake(t *testing.T) {
	b, d := open(t)
	if d.facts["boot_id"] != d.bootID || d.facts["input_window"].(float64) <= 0 {
		t.Fatal(d.facts)
	}
	runner := d.facts["runner"].(map[string]any)
	if runner["pid"].(float64) != float64(os.Getpid()) {
		t.Fatal(runner)
	}
	t.Run("second claim", func(t *testing.T) {
		other := newDriver(t)
		if err := other.attach(b.dial(), 60); !errors.Is(err, errRefused) || !strings.Contains(err.Error(), "denied") {
			t.Fatal(err)
		}
	})
	t.Run("the same claim again", func(t *testing.T) {
		other := newDriver(t)
		other.key = d.key
		if err := other.attach(b.dial(), 60); err != nil {
			t.Fatal(err)
		}
		if err := d.attach(b.dial(), 60); err != nil {
			t.Fatal(err)
		}
	})
	t.Run("wrong key", func(t *testing.T) {
		other := newDriver(t)
		other.bootID = d.bootID
		if err := other.attach(b.dial(), 60); err == nil {
			t.Fatal("the proof of another key was believed")
		}
	})
	t.Run("wrong proof", func(t *testing.T) {
		conn := b.dial()
		defer conn.Close()
		r := wire.NewReader(conn)
		hello := wire.HelloMessage{Versions: []int{1}, Nonce: strings.Repeat("ab", 16), LeaseS: 60}
		_ = writeJSON(conn, wire.Hello, hello)
		if f, err := readFrame(r); err != nil || f.Type != wire.Welcome {
			t.Fatal(f, err)
		}
		_ = writeJSON(conn, wire.Proof, wire.ProofMessage{Proof: strings.Repeat("00", 32)})
		expectGoodbye(t, r, "denied")
	})
	t.Run("wrong boot id", func(t *testing.T) {
		conn := b.dial()
		defer conn.Close()
		r := wire.NewReader(conn)
		_ = writeJSON(conn, wire.Hello, wire.HelloMessage{Versions: []int{1}, Nonce: strings.Repeat("ab", 16),
			LeaseS: 60, BootID: "another"})
		f, err := readFrame(r)
		var m wire.WelcomeMessage
		if err != nil || json.Unmarshal(f.payload, &m) != nil || m.BootID != d.bootID || m.Proof != "" {
			t.Fatal(f, err)
		}
	})
	t.Run("other version", func(t *testing.T) {
		conn := b.dial()
		defer conn.Close()
		_ = writeJSON(conn, wire.Hello, wire.HelloMessage{Versions: []int{2, 3}, Nonce: strings.Repeat("ab", 16),
			LeaseS: 60})
		expectGoodbye(t, wire.NewReader(conn), "version")
	})
	// None of it has disturbed the first stream.
	d.call("box.info", params{}, nil)
}

func expectGoodbye(t *testing.T, r *wire.Reader, reason string) {
	t.Helper()
	for {
		f, err := readFrame(r)
		if err != nil {
			t.Fatalf("no GOODBYE %s: %v", reason, err)
		}
		if f.Type != wire.Goodbye {
			continue
		}
		var m wire.GoodbyeMessage
		if err := json.Unmarshal(f.payload, &m); err != nil || m.Reason != reason {
			t.Fatalf("%s, expected %s", f.payload, reason)
		}
		if _, err := readFrame(r); !errors.Is(err, io.EOF) {
			t.Fatalf("after GOODBYE: %v", err)
		}
		return
	}
}

func TestRunnerSpeaksSecond(t *testing.T) {
	b := newBox(t, time.Minute)
	conn := b.dial()
	defer conn.Close()
	_ = conn.SetReadDeadline(time.Now().Add(50 * time.Millisecond))
	if n, err := conn.Read(make([]byte, 1)); n != 0 || !os.IsTimeout(err) {
		t.Fatal(n, err)
	}
}

func TestGarbageBeforeTheHandshake(t *testing.T) {
	b, d := open(t)
	random := make([]byte, 100<<10)
	_, _ = rand.Read(random)
	cases := map[string][]byte{
		"random":        random,
		"endless frame": wire.AppendHeader(nil, wire.Header{Length: 1<<32 - 1, Type: wire.Hello}),
		"http":          []byte("GET / HTTP/1.1\r\nHost: x\r\n\r\n"),
		"keepalive":     wire.AppendFrame(nil, wire.Keepalive, 0, 0, nil),
		"request":       encodeRequest(1, "box.shutdown", params{}, 0),
		"bad hello":     wire.AppendFrame(nil, wire.Hello, 0, 0, []byte("{}")),
		"zeros":         make([]byte, 70<<10),
	}
	for name, garbage := range cases {
		t.Run(name, func(t *testing.T) {
			conn := b.dial()
			defer conn.Close()
			go func() { _, _ = conn.Write(garbage) }()
			_ = conn.SetReadDeadline(time.Now().Add(patience))
			if _, err := io.Copy(io.Discard, conn); err != nil && os.IsTimeout(err) {
				t.Fatal("the connection stayed open")
			}
		})
	}
	t.Run("many silent connections", func(t *testing.T) {
		var open []net.Conn
		for range 100 {
			open = append(open, b.dial())
		}
		closed := 0
		for _, c := range open[:60] {
			_ = c.SetReadDeadline(time.Now().Add(patience))
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
	d.call("box.info", params{}, nil)
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
			b, d := open(t)
			d.write(frames)
			select {
			case m := <-d.bye:
				if m.Reason != "protocol" {
					t.Fatal(m)
				}
			case <-time.After(patience):
				t.Fatal("no GOODBYE")
			}
			<-d.closed
			d.reopen(b)
			d.call("box.info", params{}, nil)
		})
	}
}

func TestForbiddenPositions(t *testing.T) {
	cases := map[string]func(k *talk) []byte{
		"credit beyond sent": func(k *talk) []byte {
			return wire.AppendPositioned(nil, wire.Credit, 0, k.id, 1<<40,
				nil)
		},
		"data with a hole": func(k *talk) []byte {
			return wire.AppendPositioned(nil, wire.Data, 0, k.id, 5,
				[]byte("x"))
		},
		"end ahead": func(k *talk) []byte { return wire.AppendPositioned(nil, wire.End, 0, k.id, 9, nil) },
		"input on channel 3": func(k *talk) []byte {
			return wire.AppendPositioned(nil, wire.Data, 3, k.id, 0,
				[]byte("x"))
		},
		"resume beyond sent": func(k *talk) []byte {
			return wire.AppendPositioned(nil, wire.Resume, 0, k.id, 1<<40,
				nil)
		},
		"early ack": func(k *talk) []byte { return wire.AppendFrame(nil, wire.Ack, 0, k.id, nil) },
		"beyond the window": func(k *talk) []byte {
			var all []byte
			for at := 0; at < 1<<20; at += wire.MaxData {
				all = wire.AppendPositioned(all, wire.Data, 0, k.id, int64(at), make([]byte, wire.MaxData))
			}
			return all
		},
	}
	for name, frames := range cases {
		t.Run(name, func(t *testing.T) {
			_, d := open(t)
			d.slot("s")
			p := shell("s", "sleep 100")
			p["stdin"] = true
			k := d.begin("exec.run", p, 1<<20)
			k.until("the start", func() bool { return len(k.events) == 1 })
			go d.write(frames(k))
			select {
			case m := <-d.bye:
				if m.Reason != "protocol" {
					t.Fatal(m)
				}
			case <-time.After(patience):
				t.Fatal("no GOODBYE")
			}
		})
	}
}

func TestKeepaliveIsAnswered(t *testing.T) {
	_, d := open(t)
	for range 3 {
		d.write(wire.AppendFrame(nil, wire.Keepalive, 0, 0, nil))
	}
	d.call("box.info", params{}, nil)
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.echoes != 3 {
		t.Fatal(d.echoes)
	}
}

func TestNewerStreamWins(t *testing.T) {
	b, d := open(t)
	d.slot("s")
	k := d.begin("exec.run", shell("s", "sleep 0.3; echo done"), 1<<20)
	k.until("the start", func() bool { return len(k.events) == 1 })
	bye, closed := d.bye, d.closed
	d.reopen(b)
	select {
	case m := <-bye:
		if m.Reason != "replaced" {
			t.Fatal(m)
		}
	case <-time.After(patience):
		t.Fatal("the older stream was not told")
	}
	<-closed
	var e exit
	if err := k.finish(&e); err != nil || e.ExitCode != 0 || string(k.bytes(1)) != "done\n" || k.resumed != 1 {
		t.Fatalf("%v %+v %q %d", err, e, k.bytes(1), k.resumed)
	}
}

func TestLeaseEndsEverything(t *testing.T) {
	b := newBox(t, time.Minute)
	d := newDriver(t)
	if err := d.attach(b.dial(), 5); err != nil {
		t.Fatal(err)
	}
	d.slot("s")
	k := d.begin("exec.run", shell("s", "sleep 1000"), 1<<20)
	k.until("the start", func() bool { return len(k.events) == 1 })
	for range 20 {
		time.Sleep(300 * time.Millisecond)
		d.write(wire.AppendFrame(nil, wire.Keepalive, 0, 0, nil))
	}
	select {
	case <-b.ended:
		t.Fatal("ended although the driver spoke")
	default:
	}
	b.waitEnd(patience)
	if m := <-d.bye; m.Reason != "lease" {
		t.Fatal(m)
	}
	if _, err := os.Stat(b.base); !os.IsNotExist(err) {
		t.Fatal("the base directory is left")
	}
}

func TestRunnerWithoutDriverEnds(t *testing.T) {
	b := newBox(t, 300*time.Millisecond)
	conn := b.dial() // says nothing, and proves nothing
	defer conn.Close()
	b.waitEnd(patience)
}

func TestShutdown(t *testing.T) {
	t.Run("method", func(t *testing.T) {
		b, d := open(t)
		d.call("box.shutdown", params{}, nil)
		b.waitEnd(patience)
		if m := <-d.bye; m.Reason != "shutdown" {
			t.Fatal(m)
		}
	})
	t.Run("goodbye", func(t *testing.T) {
		b, d := open(t)
		d.slot("s")
		d.begin("exec.run", shell("s", "sleep 1000"), 1<<20)
		d.write(wire.AppendFrame(nil, wire.Goodbye, 0, 0, []byte(`{"reason":"shutdown","message":""}`)))
		b.waitEnd(patience)
	})
	t.Run("detach", func(t *testing.T) {
		b, d := open(t)
		d.slot("s")
		k := d.begin("exec.run", shell("s", "sleep 0.2; echo x"), 1<<20)
		d.write(wire.AppendFrame(nil, wire.Goodbye, 0, 0, []byte(`{"reason":"detach","message":""}`)))
		<-d.closed
		d.reopen(b)
		if err := k.finish(nil); err != nil || string(k.bytes(1)) != "x\n" {
			t.Fatal(err)
		}
	})
}

func TestEachRequestRunsOnce(t *testing.T) {
	_, d := open(t)
	d.slot("s")
	k := d.begin("exec.run", shell("s", "echo ran >> count; sleep 0.2; cat count"), 1<<20)
	d.write(k.request) // again while it runs
	k.until("the response", func() bool { return k.done })
	k.mu.Lock()
	k.done, k.response = false, nil
	k.mu.Unlock()
	d.write(k.request) // again when it is over
	k.until("the response again", func() bool { return k.done })
	var e exit
	if err := k.finish(&e); err != nil || string(k.bytes(1)) != "ran\n" {
		t.Fatalf("%v %q", err, k.bytes(1))
	}
	// After the acknowledgement the id is stale.
	d.mu.Lock()
	d.talks[k.id] = k
	d.mu.Unlock()
	k.mu.Lock()
	k.done, k.response = false, nil
	k.mu.Unlock()
	d.write(k.request)
	if err := k.finish(nil); err == nil || err.Kind != "stale" {
		t.Fatal(err)
	}
}

func TestIdsOutOfOrder(t *testing.T) {
	_, d := open(t)
	d.mu.Lock()
	d.next = 10
	d.mu.Unlock()
	d.call("box.info", params{}, nil)
	d.mu.Lock()
	d.next = 4 // sent again after a reconnect that lost it
	d.mu.Unlock()
	d.call("box.info", params{}, nil)
}

// cutting breaks the stream over and over while a command sends and receives.
func TestCutStreamLosesNothing(t *testing.T) {
	b, d := open(t)
	d.slot("s")
	input := make([]byte, 8<<20)
	_, _ = rand.Read(input)
	p := shell("s", "echo once >> count; cat")
	p["stdin"], p["stream"], p["output_limit_bytes"] = true, true, 1000
	k := d.begin("exec.run", p, 256<<10)
	k.send(input, true)
	for cuts := 1; cuts <= 6; cuts++ {
		k.until("progress", func() bool { return k.done || k.position > int64(cuts)*(1<<20) })
		d.cut()
		d.reopen(b)
	}
	var e exit
	if err := k.finish(&e); err != nil || e.ExitCode != 0 {
		t.Fatal(err, e)
	}
	if got := k.bytes(5); !bytes.Equal(got, input) {
		t.Fatalf("%d bytes came back, of %d", len(got), len(input))
	}
	if k.resumed == 0 {
		t.Fatal("nothing was resumed")
	}
	if _, out, _ := d.sh("s", "cat count"); out != "once\n" {
		t.Fatalf("%q", out)
	}
}

func TestRequestLostWithTheStream(t *testing.T) {
	b, d := open(t)
	d.slot("s")
	d.cut()
	k := d.begin("exec.run", shell("s", "echo once >> count; cat count"), 1<<20)
	d.reopen(b)
	if err := k.finish(nil); err != nil || k.unknown != 1 || string(k.bytes(1)) != "once\n" {
		t.Fatal(err, k.unknown)
	}
}

func TestResponseIsKeptUntilAcknowledged(t *testing.T) {
	b, d := open(t)
	d.slot("s")
	k := d.begin("exec.run", shell("s", "sleep 0.1; seq 100000"), 1<<20)
	k.until("the start", func() bool { return len(k.events) == 1 })
	d.cut()
	time.Sleep(300 * time.Millisecond) // it ends meanwhile
	d.reopen(b)
	var e exit
	if err := k.finish(&e); err != nil || e.ExitCode != 0 || e.Stdout.Total != 588895 || len(k.bytes(1)) != 588895 {
		t.Fatalf("%v %+v %d", err, e, len(k.bytes(1)))
	}
}

func TestLongRequests(t *testing.T) {
	_, d := open(t)
	d.slot("s")
	text := "x='" + strings.Repeat("y", 10<<20) + "'; echo ${#x}"
	var e exit
	k := d.call("exec.run", shell("s", text), &e)
	if got := string(k.bytes(1)); got != fmt.Sprintln(10<<20) {
		t.Fatalf("%q %+v %q", got, e, k.bytes(2))
	}
	if err := d.begin("exec.run", shell("s", strings.Repeat("y", 33<<20)), 1<<20).finish(nil); err == nil ||
		err.Kind != "too_large" {
		t.Fatal(err)
	}
	d.call("box.info", params{}, nil)
}

func TestBadRequests(t *testing.T) {
	_, d := open(t)
	for name, payload := range map[string]string{
		"no json": `{"method":`, "a list": `[]`, "no method": `{}`,
		"params a string": `{"method":"exec.run","params":"x"}`,
		"huge window":     `{"method":"box.info","params":{},"window":999999999999}`,
		"deep":            strings.Repeat("[", 20000),
	} {
		t.Run(name, func(t *testing.T) {
			d.mu.Lock()
			d.next++
			fresh := newTalk(d, d.next)
			d.talks[fresh.id] = fresh
			d.mu.Unlock()
			d.write(wire.AppendFrame(nil, wire.Request, 0, fresh.id, []byte(payload)))
			if err := fresh.finish(nil); err == nil || err.Kind != "bad_request" {
				t.Fatal(err)
			}
		})
	}
}

// A driver that does not read one conversation still gets the others.
func TestFloodDelaysNobody(t *testing.T) {
	_, d := open(t)
	d.slot("s")
	p := shell("s", "yes")
	p["stream"] = true
	var floods []*talk
	for range 4 {
		k := d.begin("exec.run", p, 1<<20)
		k.mu.Lock()
		k.manual = true
		k.mu.Unlock()
		floods = append(floods, k)
	}
	for _, k := range floods {
		k.until("a full window", func() bool { return k.position >= 1<<20 })
	}
	free := d.begin("exec.run", p, 1<<20) // this one is read as fast as it comes
	slowest := time.Duration(0)
	for range 50 {
		begun := time.Now()
		d.call("box.info", params{}, nil)
		slowest = max(slowest, time.Since(begun))
	}
	if slowest > 20*time.Second {
		t.Fatalf("an answer took %v beside a flood", slowest)
	}
	for _, k := range append(floods, free) {
		k.mu.Lock()
		if k.manual && k.position > (1<<20)+2*wire.MaxData {
			t.Errorf("%d bytes were sent without credit", k.position)
		}
		k.manual = false
		k.grant()
		k.mu.Unlock()
		k.cancel()
	}
	for _, k := range append(floods, free) {
		var e exit
		if err := k.finish(&e); err != nil || !e.Canceled {
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
	b, d := open(t)
	ours, theirs := net.Pipe()
	slow := &slowReady{Conn: theirs, written: make(chan struct{}), release: make(chan struct{})}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		b.server.Endpoint.Serve(slow)
	}()
	if err := d.handshake(ours, wire.NewReader(ours), 60); err != nil {
		t.Fatal(err)
	}
	<-slow.written
	ours.Close()
	d.cut()
	if err := d.attach(b.dial(), 60); err != nil {
		t.Fatal(err)
	}
	close(slow.release)
	<-ended
	d.call("box.info", params{}, nil)
}
