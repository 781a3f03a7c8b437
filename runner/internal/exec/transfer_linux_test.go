package exec_test

import (
	"bytes"
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"hermes-exec/runner/internal/testdriver"
	"hermes-exec/runner/internal/wire"
)

type contents struct {
	Layers []struct {
		Layer       string
		Directories []string
	}
	Workdir  string
	Sessions map[string]json.RawMessage
	Origin   json.RawMessage
}

func (s *sandbox) get(id string, variables bool) (c contents) {
	s.Driver.T.Helper()
	s.Call("checkpoint.get", testdriver.Params{"checkpoint": id, "variables": variables}, &c)
	return c
}

func (s *sandbox) getLayer(id, layer, directory string) []byte {
	s.Driver.T.Helper()
	var r struct{ Bytes int }
	k := s.Call("layer.get", testdriver.Params{"checkpoint": id, "layer": layer, "directory": directory}, &r)
	archive := k.Bytes(1)
	if r.Bytes != len(archive) {
		s.Driver.T.Fatalf("%d bytes of %d", len(archive), r.Bytes)
	}
	return archive
}

func (s *sandbox) beginPut(id, layer, directory string, limit int) *testdriver.Talk {
	p := testdriver.Params{"checkpoint": id, "layer": layer, "directory": directory, "limit": limit}
	return s.Begin("layer.put", p, 1<<20)
}

// move copies a checkpoint to another sandbox, under another id.
func (s *sandbox) move(id string, to *sandbox, as string, variables bool) {
	s.Driver.T.Helper()
	c := s.get(id, variables)
	var puts []map[string]string
	for _, layer := range c.Layers {
		puts = append(puts, map[string]string{"put": "from-" + layer.Layer})
		for _, directory := range layer.Directories {
			k := to.beginPut(as, "from-"+layer.Layer, directory, 1<<30)
			k.Send(s.getLayer(id, layer.Layer, directory), true)
			if err := k.Finish(nil); err != nil {
				s.Driver.T.Fatal(err)
			}
			// A repeated request is answered before any data.
			if err := to.beginPut(as, "from-"+layer.Layer, directory, 1<<30).Finish(nil); err != nil {
				s.Driver.T.Fatal(err)
			}
		}
	}
	p := testdriver.Params{"checkpoint": as, "layers": puts, "workdir": c.Workdir, "sessions": c.Sessions}
	if c.Origin != nil {
		p["origin"] = c.Origin
	}
	var first, again struct{ Layers []string }
	to.Call("checkpoint.put", p, &first)
	to.Call("checkpoint.put", p, &again)
	if len(first.Layers) != len(c.Layers) || !slices.Equal(first.Layers, again.Layers) {
		s.Driver.T.Errorf("%v %v", first, again)
	}
}

// rootDigest describes what the tests change. Copies of the image's links have times of their own.
const rootDigest = "stat -c '%n %Y' /; find /workspace /srv /tmp -printf '%p %y %m %u %g %n %T@ %l %b\\n' | sort; " +
	"find /workspace /srv -type f | sort | xargs sha256sum"

func TestInTheSandboxCheckpointMovesToAnotherSandbox(t *testing.T) {
	one, two := openSandbox(t, "a"), openSandbox(t, "b")
	var session struct{ Session string }
	one.Call("session.open", testdriver.Params{"slot": "a"}, &session)
	one.inSession("a", session.Session, "mkdir deep; cd deep; x='it is'; f() { echo $x $1; }; umask 027; export Y=y")
	one.out("a", "echo 1 > one; ln one two; mkfifo fifo; truncate -s 100000 hole; mkdir -p /srv; echo old > /srv/file")
	one.checkpoint("a", "first", "end")
	one.out("a", "rm two; echo new > /srv/file; chmod 4711 /srv/file; touch -d 1960-01-01 one; mv deep/../fifo /srv")
	one.checkpoint("a", "cp", "keep")
	one.restore("a", "cp") // whose times of directories the other sandbox will have too
	want := one.out("a", rootDigest)
	one.move("cp", two, "moved", true)
	r := two.restore("b", "moved")
	if got := two.out("b", rootDigest); got != want {
		t.Errorf("%s\n\n%s", got, want)
	}
	again := r.Sessions[session.Session]
	if out := two.inSession("b", again.Session, "f here; pwd; umask; printenv Y"); out != "it is here\n/workspace/deep\n0027\ny" {
		t.Errorf("%q", out)
	}
	// A second checkpoint over the same layers needs only its own.
	two.out("b", "echo more > more")
	two.checkpoint("b", "next", "keep")
	if n := len(two.layers()); n != 3 {
		t.Errorf("%d layers", n)
	}
	var have []map[string]string
	for _, layer := range two.get("moved", true).Layers {
		have = append(have, map[string]string{"have": layer.Layer})
	}
	p := testdriver.Params{"checkpoint": "shared", "layers": have, "workdir": "/", "sessions": map[string]any{}}
	two.Call("checkpoint.put", p, nil)
	if n := len(two.layers()); n != 3 {
		t.Errorf("%d layers", n)
	}
	for _, id := range []string{"moved", "next", "shared"} {
		two.Call("checkpoint.drop", testdriver.Params{"checkpoint": id}, nil)
	}
	two.Call("slot.reset", testdriver.Params{"slot": "b"}, nil)
	if left := two.layers(); len(left) > 0 {
		t.Error(left)
	}
	p["checkpoint"] = "late"
	two.Fails("no_checkpoint", "checkpoint.put", p)
	two.Fails("no_checkpoint", "checkpoint.get", testdriver.Params{"checkpoint": "late"})
}

func TestInTheSandboxSessionsMoveWithoutVariables(t *testing.T) {
	one, two := openSandbox(t, "a"), openSandbox(t, "b")
	for _, text := range []string{"", "cd /srv; export SECRET=s3cret TOKEN=s3cret; X=s3cret; f() { echo f; }; umask 027; set -f"} {
		var session struct{ Session string }
		one.Call("session.open", testdriver.Params{"slot": "a", "env": map[string]string{"KEY": "s3cret"}}, &session)
		if text != "" {
			one.inSession("a", session.Session, "mkdir -p /srv; "+text)
		}
		id := "cp" + session.Session
		one.checkpoint("a", id, "keep")
		if encoded, _ := json.Marshal(one.get(id, false)); strings.Contains(string(encoded), "s3cret") {
			t.Errorf("%s", encoded)
		}
		if encoded, _ := json.Marshal(one.get(id, true)); !strings.Contains(string(encoded), "s3cret") {
			t.Errorf("%s", encoded)
		}
		one.move(id, two, id, false)
		again := two.restore("b", id).Sessions[session.Session]
		show := "echo $SECRET$TOKEN$X$KEY; command -v ls > /dev/null && echo $HOME; pwd; "
		want := "\n" + two.out("b", "echo $HOME") + "\n/workspace"
		if text != "" {
			show += "f; umask; case $- in *f*) echo noglob;; esac"
			want = strings.TrimSuffix(want, "/workspace") + "/srv\nf\n0027\nnoglob"
		}
		if out := two.inSession("b", again.Session, show); out != strings.TrimSpace(want) {
			t.Errorf("%q, not %q", out, want)
		}
	}
}

func TestInTheSandboxRefusedLayersLeaveNothing(t *testing.T) {
	one, two := openSandbox(t, "a"), openSandbox(t, "b")
	one.out("a", "head -c 3000000 /dev/urandom > big")
	one.checkpoint("a", "cp", "keep")
	layer := one.get("cp", true).Layers[0]
	archive := one.getLayer("cp", layer.Layer, layer.Directories[0])
	for kind, put := range map[string]struct {
		directory string
		limit     int
		data      []byte
	}{
		"other_root": {"/no/such", 1 << 30, archive},
		"too_large":  {layer.Directories[0], 1 << 20, archive},
		"refused":    {layer.Directories[0], 1 << 30, bytes.ReplaceAll(archive, []byte("big"), []byte("../"))},
		"canceled":   {layer.Directories[0], 1 << 30, archive[:1<<20]},
	} {
		k := two.beginPut("cp", "1", put.directory, put.limit)
		k.Send(put.data[:1<<19], false)
		if kind == "canceled" {
			for len(two.layers()) == 0 {
			}
			k.Cancel()
		} else {
			k.Send(put.data[1<<19:], true)
		}
		if err := k.Finish(nil); err == nil || err.Kind != kind {
			t.Errorf("%s: %v", kind, err)
		}
		p := testdriver.Params{"checkpoint": "cp", "layers": []map[string]string{{"put": "2"}}, "workdir": "/", "sessions": map[string]any{}}
		two.Fails("no_checkpoint", "checkpoint.put", p)
		two.Call("checkpoint.drop", testdriver.Params{"checkpoint": "cp"}, nil)
		if left := two.layers(); len(left) > 0 {
			t.Errorf("%s: %v", kind, left)
		}
	}
	two.Fails("bad_request", "layer.put", testdriver.Params{"checkpoint": "../cp", "layer": "1", "directory": "/", "limit": 1})
	two.Fails("bad_request", "layer.put", testdriver.Params{"checkpoint": "cp", "layer": "1", "directory": "/", "limit": 1, "store_limit": -1})
	one.Fails("bad_request", "layer.get", testdriver.Params{"checkpoint": "cp", "layer": layer.Layer, "directory": "/none"})
	one.Fails("no_checkpoint", "layer.get", testdriver.Params{"checkpoint": "other", "layer": "1", "directory": "/"})
}

func TestInTheSandboxStoreLimitEndsATransferWhileItsBytesArrive(t *testing.T) {
	one, two := openSandbox(t, "a"), openSandbox(t, "b")
	one.out("a", "head -c 3000000 /dev/urandom > big")
	one.checkpoint("a", "cp", "keep")
	from := one.get("cp", true).Layers[0]
	directory := from.Directories[0]
	archive := one.getLayer("cp", from.Layer, directory)
	put := func(id, layer string, limit int, whole bool) *wire.Error {
		p := testdriver.Params{"checkpoint": id, "layer": layer, "directory": directory, "limit": 1 << 30, "store_limit": limit}
		k := two.Begin("layer.put", p, 1<<20)
		if k.Send(archive[:1<<19], false); whole { // otherwise its answer does not wait for the rest
			k.Send(archive[1<<19:], true)
		}
		return k.Finish(nil)
	}
	expectFull := func(id string, err *wire.Error) {
		t.Helper()
		if err == nil || err.Kind != "store_full" || !strings.Contains(err.Message, "at most") {
			t.Errorf("%v", err)
		}
		two.Call("checkpoint.drop", testdriver.Params{"checkpoint": id}, nil)
	}
	expectFull("small", put("small", "1", 2_000_000, false))
	if err := put("both", "1", 4_000_000, true); err != nil {
		t.Fatal(err)
	}
	expectFull("both", put("both", "2", 4_000_000, false))
	if left := two.layers(); len(left) > 0 {
		t.Error(left)
	}
	for _, layer := range []string{"1", "2"} {
		if err := put("fits", layer, 7_000_000, true); err != nil {
			t.Fatal(err)
		}
	}
	p := testdriver.Params{"checkpoint": "fits", "layers": []map[string]string{{"put": "1"}, {"put": "2"}}, "workdir": "/",
		"sessions": map[string]any{}, "limit": 7_000_000}
	two.Call("checkpoint.put", p, nil)
	expectFull("more", put("more", "1", 5_000_000, false))
	two.Call("checkpoint.drop", testdriver.Params{"checkpoint": "fits"}, nil)
	if err := put("again", "1", 4_000_000, true); err != nil {
		t.Errorf("%v after a drop", err)
	}
}
