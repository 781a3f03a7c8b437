package serve_test

import (
	"bytes"
	"crypto/rand"
	"fmt"
	"io"
	"net"
	"strings"
	"testing"
	"time"
)

func (d *driver) put(slot, path string, content []byte) {
	d.t.Helper()
	k := d.begin("file.write", params{"slot": slot, "path": path, "parents": true, "append": false}, 1<<20)
	go k.send(content, true)
	var r struct{ Written int64 }
	if err := k.finish(&r); err != nil || r.Written != int64(len(content)) {
		d.t.Fatal(err, r)
	}
}

func TestFilesOfAnySize(t *testing.T) {
	_, d := open(t)
	d.slot("s")
	for _, size := range []int{0, 1, 1000, 64 << 10, 64<<10 + 1, 200 << 10, 20 << 20} {
		content := make([]byte, size)
		_, _ = rand.Read(content)
		d.put("s", "a/b", content)
		var r struct{ Size, Read int64 }
		k := d.call("file.read", params{"slot": "s", "path": "a/b", "offset": 0}, &r)
		if r.Size != int64(size) || r.Read != int64(size) || !bytes.Equal(k.bytes(1), content) {
			t.Fatalf("%d: %+v, %d bytes", size, r, len(k.bytes(1)))
		}
		if size > 100 {
			k = d.call("file.read", params{"slot": "s", "path": "a/b", "offset": 10, "length": size - 50}, &r)
			if !bytes.Equal(k.bytes(1), content[10:size-40]) {
				t.Fatalf("%d: %+v, %d bytes", size, r, len(k.bytes(1)))
			}
		}
	}
	e := d.fails("os", "file.read", params{"slot": "s", "path": "none", "offset": 0})
	if e.Errno != "ENOENT" || !strings.HasSuffix(string(e.Path), "none") {
		t.Fatalf("%+v", e)
	}
}

func TestCanceledWriteKeepsTheOldFile(t *testing.T) {
	_, d := open(t)
	d.slot("s")
	d.put("s", "f", []byte("old"))
	for _, sent := range []int{0, 10, 1 << 20} {
		k := d.begin("file.write", params{"slot": "s", "path": "f", "parents": false, "append": false}, 1<<20)
		go k.send(make([]byte, sent), false)
		k.until("some input", func() bool { return k.sent >= int64(min(sent, 300<<10)) })
		k.cancel()
		if err := k.finish(nil); err == nil || err.Kind != "canceled" {
			t.Fatal(err)
		}
		if _, out, _ := d.sh("s", "cat f; ls -A | wc -l"); out != "old1\n" {
			t.Fatalf("%d: %q", sent, out)
		}
	}
}

func TestWriteThatFailsEarly(t *testing.T) {
	_, d := open(t)
	d.slot("s")
	k := d.begin("file.write", params{"slot": "s", "path": "/proc/none/x", "parents": false, "append": false}, 1<<20)
	go k.send(make([]byte, 10<<20), true)
	if err := k.finish(nil); err == nil || err.Kind != "os" {
		t.Fatal(err)
	}
}

func TestTrees(t *testing.T) {
	_, d := open(t)
	d.slot("s")
	d.sh("s", "mkdir -p d/e; seq 100000 > d/e/f; ln -s e/f d/link")
	k := d.call("file.get_tree", params{"slot": "s", "path": "d"}, nil)
	put := d.begin("file.put_tree", params{"slot": "s", "path": "copy"}, 1<<20)
	go put.send(k.bytes(1), true)
	if err := put.finish(nil); err != nil {
		t.Fatal(err)
	}
	if e, out, _ := d.sh("s", "diff -r d copy && readlink copy/link"); e.ExitCode != 0 || out != "e/f\n" {
		t.Fatalf("%+v %q", e, out)
	}
}

func TestOtherFileMethods(t *testing.T) {
	_, d := open(t)
	d.slot("s")
	d.call("file.mkdir", params{"slot": "s", "path": "x/y", "parents": true, "exist_ok": false}, nil)
	d.put("s", "x/y/f.txt", []byte("needle\n"))
	var found struct {
		Total   int
		Matches []struct{ Path, Text string }
	}
	d.call("file.search", params{"slot": "s", "pattern": "needle", "path": ".", "regex": false, "target": "content",
		"limit": 10, "offset": 0, "context": 0}, &found)
	if found.Total != 1 || len(found.Matches) != 1 || found.Matches[0].Text != "needle" {
		t.Fatalf("%+v", found)
	}
	d.call("file.remove", params{"slot": "s", "path": "x", "recursive": true, "missing_ok": false}, nil)
	if e := d.fails("os", "file.stat", params{"slot": "s", "path": "x", "follow": true}); e.Errno != "ENOENT" {
		t.Fatalf("%+v", e)
	}
}

func TestConnect(t *testing.T) {
	_, d := open(t)
	d.slot("s")
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	go func() {
		for {
			c, err := listener.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				n, _ := io.Copy(c, c)
				fmt.Fprintf(c, "|%d", n)
			}()
		}
	}()
	port := listener.Addr().(*net.TCPAddr).Port
	content := make([]byte, 5<<20)
	_, _ = rand.Read(content)
	k := d.begin("net.connect", params{"slot": "s", "host": "127.0.0.1", "port": port}, 1<<20)
	k.until("the connection", func() bool { return len(k.events) == 1 && k.events[0]["event"] == "connected" })
	go k.send(content, true)
	if err := k.finish(nil); err != nil || !k.ends[0] {
		t.Fatal(err)
	}
	if want := append(content, fmt.Sprintf("|%d", len(content))...); !bytes.Equal(k.bytes(0), want) {
		t.Fatalf("%d bytes", len(k.bytes(0)))
	}
	k = d.begin("net.connect", params{"slot": "s", "host": "127.0.0.1", "port": port}, 1<<20)
	k.until("the connection", func() bool { return len(k.events) == 1 })
	k.cancel()
	if err := k.finish(nil); err == nil || err.Kind != "canceled" {
		t.Fatal(err)
	}
	listener.Close()
	if e := d.fails("os", "net.connect", params{"slot": "s", "host": "127.0.0.1",
		"port": port}); e.Errno != "ECONNREFUSED" {
		t.Fatalf("%+v", e)
	}
	d.fails("bad_request", "net.connect", params{"slot": "s", "host": "127.0.0.1", "port": 0})
	d.fails("bad_request", "net.connect", params{"slot": "s", "host": "127.0.0.1", "port": port, "wait_s": -1})
	started := time.Now()
	d.fails("os", "net.connect", params{"slot": "s", "host": "127.0.0.1", "port": port, "wait_s": 0.2})
	if waited := time.Since(started); waited < 200*time.Millisecond {
		t.Fatalf("refused after %v", waited)
	}
	k = d.begin("net.connect", params{"slot": "s", "host": "127.0.0.1", "port": port, "wait_s": 30}, 1<<20)
	late, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port))
	if err != nil {
		t.Fatal(err)
	}
	defer late.Close()
	k.until("the connection", func() bool { return len(k.events) == 1 })
	k.cancel()
	_ = k.finish(nil)
}

// Six searches use all of an agent's threads for files.
func TestCanceledSearchesFreeTheAgent(t *testing.T) {
	_, d := open(t)
	d.slot("s")
	e, _, stderr := d.sh("s", `mkdir many; yes 'not what is looked for' | head -c 4000000 > many/0
for i in $(seq 3000); do ln many/0 many/$i; done`)
	if e.ExitCode != 0 {
		t.Fatal(stderr)
	}
	var calls []*talk
	for range 8 {
		calls = append(calls, d.begin("file.search",
			params{"slot": "s", "pattern": "[n-p]o.*[x-z]$", "path": "many", "limit": 1}, 1<<20))
	}
	for _, k := range calls {
		k.cancel()
		if e := k.finish(nil); e == nil || e.Kind != "canceled" {
			t.Fatal(e)
		}
	}
	began := time.Now()
	d.call("file.stat", params{"slot": "s", "path": "many", "follow": true}, nil)
	if took := time.Since(began); took > 30*time.Second {
		t.Errorf("the agent was busy for %v after the cancels", took)
	}
}

// A socket in the slot carries what connects to it, as the slot's own, until
// its conversation or the slot ends.
func TestListen(t *testing.T) {
	_, d := open(t)
	var slot struct{ Workspace string }
	d.call("slot.create", params{"slot": "s", "level": "none", "floor": "none", "network": true}, &slot)
	at := slot.Workspace + "/callback"
	l := d.begin("net.listen", params{"slot": "s", "path": at}, 1<<20)
	l.until("the socket", func() bool { return len(l.events) == 1 && l.events[0]["event"] == "listening" })
	if e := d.fails("os", "net.listen", params{"slot": "s", "path": at}); e.Errno != "EADDRINUSE" {
		t.Fatalf("%+v", e)
	}
	if e := d.fails("os", "net.listen", params{"slot": "s", "path": "/" + strings.Repeat("x", 200)}); e.Errno != "ENAMETOOLONG" {
		t.Fatalf("%+v", e)
	}
	d.fails("bad_request", "net.listen", params{"slot": "s", "path": "callback"})
	for n := range 2 {
		k := d.begin("net.accept", params{"slot": "s", "listener": l.id}, 1<<20)
		peer, err := net.Dial("unix", at)
		if err != nil {
			t.Fatal(err)
		}
		k.until("the connection", func() bool { return len(k.events) == 1 && k.events[0]["event"] == "connected" })
		fmt.Fprintf(peer, "question %d", n)
		_ = peer.(*net.UnixConn).CloseWrite()
		k.send([]byte("answer"), true)
		if err := k.finish(nil); err != nil || string(k.bytes(0)) != fmt.Sprintf("question %d", n) {
			t.Fatal(err, k.bytes(0))
		}
		if answer, err := io.ReadAll(peer); err != nil || string(answer) != "answer" {
			t.Fatal(err, answer)
		}
		_ = peer.Close()
	}
	k := d.begin("net.accept", params{"slot": "s", "listener": l.id}, 1<<20)
	peer, err := net.Dial("unix", at)
	if err != nil {
		t.Fatal(err)
	}
	defer peer.Close()
	k.until("the connection", func() bool { return len(k.events) == 1 })
	k.send([]byte("goodbye"), false)
	k.cancel()
	if err := k.finish(nil); err == nil || err.Kind != "canceled" {
		t.Fatal(err)
	}
	if said, err := io.ReadAll(peer); err != nil || string(said) != "goodbye" {
		t.Fatalf("%v: what was sent before the end came as %q", err, said)
	}
	waiting := d.begin("net.accept", params{"slot": "s", "listener": l.id}, 1<<20)
	l.cancel()
	if err := l.finish(nil); err == nil || err.Kind != "canceled" {
		t.Fatal(err)
	}
	if err := waiting.finish(nil); err == nil || err.Errno != "ECONNABORTED" {
		t.Fatal(err)
	}
	if e := d.fails("os", "net.accept", params{"slot": "s", "listener": l.id}); e.Errno != "ECONNABORTED" {
		t.Fatalf("%+v", e)
	}
	if _, err := net.Dial("unix", at); err == nil {
		t.Fatal("it still listens")
	}
}
