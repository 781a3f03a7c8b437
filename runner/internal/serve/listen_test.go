package serve_test

import (
	"bytes"
	"crypto/rand"
	"fmt"
	"io"
	"net"
	"strings"
	"testing"

	"hermes-exec/runner/internal/testdriver"
)

func hostSlot(d *testdriver.Driver) string {
	var slot struct{ Workspace string }
	d.Call("slot.create", testdriver.Params{"slot": "s", "level": "none", "floor": "none", "network": true}, &slot)
	return slot.Workspace
}

func listen(t *testing.T, d *testdriver.Driver, port int) (l *testdriver.Talk, address string) {
	t.Helper()
	l = d.Begin("net.listen", testdriver.Params{"slot": "s", "host": "127.0.0.1", "port": port}, 1<<20)
	l.Until("the socket or a refusal", func() bool { return len(l.Events) == 1 || l.Done })
	if l.Done {
		t.Fatalf("%s", l.Response)
	}
	address, _ = l.Events[0]["address"].(string)
	return l, address
}

func accept(d *testdriver.Driver, l *testdriver.Talk) *testdriver.Talk {
	return d.Begin("net.accept", testdriver.Params{"slot": "s", "listener": l.ID}, 1<<20)
}

func portOf(t *testing.T, address string) (port int) {
	t.Helper()
	if _, err := fmt.Sscanf(address, "127.0.0.1:%d", &port); err != nil || port == 0 {
		t.Fatalf("address %q", address)
	}
	return port
}

// A socket in the slot carries what connects to it, as the slot's own, until
// its conversation or the slot ends.
func TestListen(t *testing.T) {
	_, d := testdriver.Open(t)
	at := hostSlot(d) + "/callback"
	l := d.Begin("net.listen", testdriver.Params{"slot": "s", "path": at}, 1<<20)
	l.Until("the socket", func() bool { return len(l.Events) == 1 && l.Events[0]["event"] == "listening" })
	if e := d.Fails("os", "net.listen", testdriver.Params{"slot": "s", "path": at}); e.Errno != "EADDRINUSE" {
		t.Fatalf("%+v", e)
	}
	if e := d.Fails("os", "net.listen", testdriver.Params{"slot": "s", "path": "/" + strings.Repeat("x", 200)}); e.Errno != "ENAMETOOLONG" {
		t.Fatalf("%+v", e)
	}
	d.Fails("bad_request", "net.listen", testdriver.Params{"slot": "s", "path": "callback"})
	for n := range 2 {
		k := d.Begin("net.accept", testdriver.Params{"slot": "s", "listener": l.ID}, 1<<20)
		peer, err := net.Dial("unix", at)
		if err != nil {
			t.Fatal(err)
		}
		k.Until("the connection", func() bool { return len(k.Events) == 1 && k.Events[0]["event"] == "connected" })
		fmt.Fprintf(peer, "question %d", n)
		_ = peer.(*net.UnixConn).CloseWrite()
		k.Send([]byte("answer"), true)
		if err := k.Finish(nil); err != nil || string(k.Bytes(0)) != fmt.Sprintf("question %d", n) {
			t.Fatal(err, k.Bytes(0))
		}
		if answer, err := io.ReadAll(peer); err != nil || string(answer) != "answer" {
			t.Fatal(err, answer)
		}
		_ = peer.Close()
	}
	k := d.Begin("net.accept", testdriver.Params{"slot": "s", "listener": l.ID}, 1<<20)
	peer, err := net.Dial("unix", at)
	if err != nil {
		t.Fatal(err)
	}
	defer peer.Close()
	k.Until("the connection", func() bool { return len(k.Events) == 1 })
	k.Send([]byte("goodbye"), false)
	k.Cancel()
	if err := k.Finish(nil); err == nil || err.Kind != "canceled" {
		t.Fatal(err)
	}
	if said, err := io.ReadAll(peer); err != nil || string(said) != "goodbye" {
		t.Fatalf("%v: what was sent before the end came as %q", err, said)
	}
	waiting := d.Begin("net.accept", testdriver.Params{"slot": "s", "listener": l.ID}, 1<<20)
	l.Cancel()
	if err := l.Finish(nil); err == nil || err.Kind != "canceled" {
		t.Fatal(err)
	}
	if err := waiting.Finish(nil); err == nil || err.Errno != "ECONNABORTED" {
		t.Fatal(err)
	}
	if e := d.Fails("os", "net.accept", testdriver.Params{"slot": "s", "listener": l.ID}); e.Errno != "ECONNABORTED" {
		t.Fatalf("%+v", e)
	}
	if _, err := net.Dial("unix", at); err == nil {
		t.Fatal("it still listens")
	}
}

func TestListenOnAPort(t *testing.T) {
	_, d := testdriver.Open(t)
	hostSlot(d)
	l, address := listen(t, d, 0)
	port := portOf(t, address)
	if e := d.Fails("os", "net.listen", testdriver.Params{"slot": "s", "host": "127.0.0.1",
		"port": port}); e.Errno != "EADDRINUSE" {
		t.Fatalf("%+v", e)
	}
	for _, bad := range []testdriver.Params{
		{"host": "127.0.0.1", "port": -1}, {"host": "127.0.0.1", "port": 65536}, {"host": "localhost", "port": 0},
		{"port": 0}, {"host": "127.0.0.1", "port": 0, "path": "/x"}, {"host": "127.0.0.1"},
	} {
		bad["slot"] = "s"
		d.Fails("bad_request", "net.listen", bad)
	}
	content := make([]byte, 1<<20)
	_, _ = rand.Read(content)
	k := accept(d, l)
	peer, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	k.Until("the connection", func() bool { return len(k.Events) == 1 && k.Events[0]["event"] == "connected" })
	if k.Events[0]["local"] != address {
		t.Fatalf("%+v instead of %s", k.Events[0], address)
	}
	go func() {
		_, _ = peer.Write(content)
		_ = peer.(*net.TCPConn).CloseWrite() // the other direction goes on
	}()
	k.Until("the end", func() bool { return k.Ends[0] })
	go k.Send(content, true)
	answer, err := io.ReadAll(peer)
	if err != nil || !bytes.Equal(answer, content) {
		t.Fatal(err, len(answer))
	}
	if err := k.Finish(nil); err != nil || !bytes.Equal(k.Bytes(0), content) {
		t.Fatal(err, len(k.Bytes(0)))
	}
	_ = peer.Close()
	l.Cancel()
	_ = l.Finish(nil)
}

// The port is free when the driver has the answer, also while connections to it are open.
func TestListenFreesItsPort(t *testing.T) {
	_, d := testdriver.Open(t)
	hostSlot(d)
	l, address := listen(t, d, 0)
	for range 100 {
		k := accept(d, l)
		var peers [2]net.Conn // the second one waits in the kernel
		for i := range peers {
			var err error
			if peers[i], err = net.Dial("tcp", address); err != nil {
				t.Fatal(err)
			}
			defer peers[i].Close()
		}
		k.Until("the connection", func() bool { return len(k.Events) == 1 })
		l.Cancel()
		if err := l.Finish(nil); err == nil || err.Kind != "canceled" {
			t.Fatal(err)
		}
		l, _ = listen(t, d, portOf(t, address))
		k.Send([]byte("still open"), true)
		if said, err := io.ReadAll(peers[0]); err != nil || string(said) != "still open" {
			t.Fatal(err, said)
		}
		_ = peers[0].Close()
		_ = k.Finish(nil)
	}
	l.Cancel()
	_ = l.Finish(nil)
	if _, err := net.Dial("tcp", address); err == nil {
		t.Fatal("it still listens")
	}
}

// A driver that writes to a client that has gone learns of it by the answer.
func TestAcceptedClientThatGoesAway(t *testing.T) {
	_, d := testdriver.Open(t)
	hostSlot(d)
	l, address := listen(t, d, 0)
	k := accept(d, l)
	peer, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	k.Until("the connection", func() bool { return len(k.Events) == 1 })
	sent := make(chan struct{})
	go func() {
		defer close(sent)
		k.Send(make([]byte, 64<<20), false)
	}()
	k.Until("some output", func() bool { return k.Sent > 1<<20 })
	_ = peer.(*net.TCPConn).SetLinger(0)
	_ = peer.Close()
	k.Until("the answer", func() bool { return k.Done })
	l.Cancel()
	_ = l.Finish(nil)
	<-sent
}

func TestListenEndsWithItsSlot(t *testing.T) {
	for _, method := range []string{"slot.reset", "slot.destroy"} {
		_, d := testdriver.Open(t)
		hostSlot(d)
		l, address := listen(t, d, 0)
		k := accept(d, l)
		peer, err := net.Dial("tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		defer peer.Close()
		k.Until("the connection", func() bool { return len(k.Events) == 1 })
		d.Call(method, testdriver.Params{"slot": "s"}, nil)
		for _, ended := range []*testdriver.Talk{l, k} {
			if err := ended.Finish(nil); err == nil || err.Kind != "slot_closed" {
				t.Fatal(err)
			}
		}
		if _, err := peer.Read(make([]byte, 1)); err == nil {
			t.Fatal("the connection goes on")
		}
		if _, err := net.Dial("tcp", address); err == nil {
			t.Fatal("it still listens")
		}
	}
}
