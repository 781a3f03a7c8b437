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

	"hermes-exec/runner/internal/testdriver"
)

func TestFilesOfAnySize(t *testing.T) {
	_, d := testdriver.Open(t)
	d.Slot("s")
	for _, size := range []int{0, 1, 1000, 64 << 10, 64<<10 + 1, 200 << 10, 20 << 20} {
		content := make([]byte, size)
		_, _ = rand.Read(content)
		d.Put("s", "a/b", content)
		var r struct{ Size, Read int64 }
		k := d.Call("file.read", testdriver.Params{"slot": "s", "path": "a/b", "offset": 0}, &r)
		if r.Size != int64(size) || r.Read != int64(size) || !bytes.Equal(k.Bytes(1), content) {
			t.Fatalf("%d: %+v, %d bytes", size, r, len(k.Bytes(1)))
		}
		if size > 100 {
			k = d.Call("file.read", testdriver.Params{"slot": "s", "path": "a/b", "offset": 10, "length": size - 50}, &r)
			if !bytes.Equal(k.Bytes(1), content[10:size-40]) {
				t.Fatalf("%d: %+v, %d bytes", size, r, len(k.Bytes(1)))
			}
		}
	}
	e := d.Fails("os", "file.read", testdriver.Params{"slot": "s", "path": "none", "offset": 0})
	if e.Errno != "ENOENT" || !strings.HasSuffix(string(e.Path), "none") {
		t.Fatalf("%+v", e)
	}
}

func TestCanceledWriteKeepsTheOldFile(t *testing.T) {
	_, d := testdriver.Open(t)
	d.Slot("s")
	d.Put("s", "f", []byte("old"))
	for _, sent := range []int{0, 10, 1 << 20} {
		k := d.Begin("file.write", testdriver.Params{"slot": "s", "path": "f", "parents": false, "append": false}, 1<<20)
		go k.Send(make([]byte, sent), false)
		k.Until("some input", func() bool { return k.Sent >= int64(min(sent, 300<<10)) })
		k.Cancel()
		if err := k.Finish(nil); err == nil || err.Kind != "canceled" {
			t.Fatal(err)
		}
		if _, out, _ := d.Sh("s", "cat f; ls -A | wc -l"); out != "old1\n" {
			t.Fatalf("%d: %q", sent, out)
		}
	}
}

func TestWriteThatFailsEarly(t *testing.T) {
	_, d := testdriver.Open(t)
	d.Slot("s")
	k := d.Begin("file.write", testdriver.Params{"slot": "s", "path": "/proc/none/x", "parents": false, "append": false}, 1<<20)
	go k.Send(make([]byte, 10<<20), true)
	if err := k.Finish(nil); err == nil || err.Kind != "os" {
		t.Fatal(err)
	}
}

func TestTrees(t *testing.T) {
	_, d := testdriver.Open(t)
	d.Slot("s")
	d.Sh("s", "mkdir -p d/e; seq 100000 > d/e/f; ln -s e/f d/link")
	k := d.Call("file.get_tree", testdriver.Params{"slot": "s", "path": "d"}, nil)
	put := d.Begin("file.put_tree", testdriver.Params{"slot": "s", "path": "copy"}, 1<<20)
	go put.Send(k.Bytes(1), true)
	if err := put.Finish(nil); err != nil {
		t.Fatal(err)
	}
	if e, out, _ := d.Sh("s", "diff -r d copy && readlink copy/link"); e.ExitCode != 0 || out != "e/f\n" {
		t.Fatalf("%+v %q", e, out)
	}
}

func TestOtherFileMethods(t *testing.T) {
	_, d := testdriver.Open(t)
	d.Slot("s")
	d.Call("file.mkdir", testdriver.Params{"slot": "s", "path": "x/y", "parents": true, "exist_ok": false}, nil)
	d.Put("s", "x/y/f.txt", []byte("needle\n"))
	var found struct {
		Total   int
		Matches []struct{ Path, Text string }
	}
	d.Call("file.search", testdriver.Params{"slot": "s", "pattern": "needle", "path": ".", "regex": false, "target": "content",
		"limit": 10, "offset": 0, "context": 0}, &found)
	if found.Total != 1 || len(found.Matches) != 1 || found.Matches[0].Text != "needle" {
		t.Fatalf("%+v", found)
	}
	d.Call("file.remove", testdriver.Params{"slot": "s", "path": "x", "recursive": true, "missing_ok": false}, nil)
	if e := d.Fails("os", "file.stat", testdriver.Params{"slot": "s", "path": "x", "follow": true}); e.Errno != "ENOENT" {
		t.Fatalf("%+v", e)
	}
}

func TestConnect(t *testing.T) {
	_, d := testdriver.Open(t)
	d.Slot("s")
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
	k := d.Begin("net.connect", testdriver.Params{"slot": "s", "host": "127.0.0.1", "port": port}, 1<<20)
	k.Until("the connection", func() bool { return len(k.Events) == 1 && k.Events[0]["event"] == "connected" })
	go k.Send(content, true)
	if err := k.Finish(nil); err != nil || !k.Ends[0] {
		t.Fatal(err)
	}
	if want := append(content, fmt.Sprintf("|%d", len(content))...); !bytes.Equal(k.Bytes(0), want) {
		t.Fatalf("%d bytes", len(k.Bytes(0)))
	}
	k = d.Begin("net.connect", testdriver.Params{"slot": "s", "host": "127.0.0.1", "port": port}, 1<<20)
	k.Until("the connection", func() bool { return len(k.Events) == 1 })
	k.Cancel()
	if err := k.Finish(nil); err == nil || err.Kind != "canceled" {
		t.Fatal(err)
	}
	listener.Close()
	if e := d.Fails("os", "net.connect", testdriver.Params{"slot": "s", "host": "127.0.0.1",
		"port": port}); e.Errno != "ECONNREFUSED" {
		t.Fatalf("%+v", e)
	}
	d.Fails("bad_request", "net.connect", testdriver.Params{"slot": "s", "host": "127.0.0.1", "port": 0})
	d.Fails("bad_request", "net.connect", testdriver.Params{"slot": "s", "host": "127.0.0.1", "port": port, "wait_s": -1})
	started := time.Now()
	d.Fails("os", "net.connect", testdriver.Params{"slot": "s", "host": "127.0.0.1", "port": port, "wait_s": 0.2})
	if waited := time.Since(started); waited < 200*time.Millisecond {
		t.Fatalf("refused after %v", waited)
	}
	k = d.Begin("net.connect", testdriver.Params{"slot": "s", "host": "127.0.0.1", "port": port, "wait_s": 30}, 1<<20)
	late, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port))
	if err != nil {
		t.Fatal(err)
	}
	defer late.Close()
	k.Until("the connection", func() bool { return len(k.Events) == 1 })
	k.Cancel()
	_ = k.Finish(nil)
}

// Six searches use all of an agent's threads for files.
func TestCanceledSearchesFreeTheAgent(t *testing.T) {
	_, d := testdriver.Open(t)
	d.Slot("s")
	e, _, stderr := d.Sh("s", `mkdir many; yes 'not what is looked for' | head -c 4000000 > many/0
for i in $(seq 3000); do ln many/0 many/$i; done`)
	if e.ExitCode != 0 {
		t.Fatal(stderr)
	}
	var calls []*testdriver.Talk
	for range 8 {
		calls = append(calls, d.Begin("file.search",
			testdriver.Params{"slot": "s", "pattern": "[n-p]o.*[x-z]$", "path": "many", "limit": 1}, 1<<20))
	}
	for _, k := range calls {
		k.Cancel()
		if e := k.Finish(nil); e == nil || e.Kind != "canceled" {
			t.Fatal(e)
		}
	}
	began := time.Now()
	d.Call("file.stat", testdriver.Params{"slot": "s", "path": "many", "follow": true}, nil)
	if took := time.Since(began); took > 30*time.Second {
		t.Errorf("the agent was busy for %v after the cancels", took)
	}
}
