package exec_test

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"hermes-exec/runner/internal/testdriver"
	"hermes-exec/runner/internal/testsandbox"
)

func TestSandbox(t *testing.T) {
	if testdriver.Probe().Method != "direct" {
		t.Skip("no namespaces can be made for it")
	}
	testsandbox.Run(t)
}

type place struct{ Session, Cwd string }

type held struct {
	Layers   []string
	Sessions map[string]place
	Workdir  string
	Copied   bool
	Killed   *struct{ Found, Left int }

	Directories []string
}

type restored struct {
	Clean    bool
	Sessions map[string]place
	Workdir  string
}

// sandbox is a runner with slots that have roots of their own.
type sandbox struct {
	*testdriver.Driver
	*testdriver.Sandbox
}

func openSandbox(t *testing.T, slots ...string) *sandbox {
	t.Helper()
	return openSandboxAs(t, "", slots...)
}

// openSandboxAs is openSandbox with a user of the image.
func openSandboxAs(t *testing.T, user string, slots ...string) *sandbox {
	t.Helper()
	testsandbox.Skip(t)
	b, d := testdriver.Open(t)
	for _, slot := range slots {
		d.Call("slot.create", testdriver.Params{"slot": slot, "level": "auto", "floor": "none", "network": true,
			"own_root": true, "workspace": "/workspace", "user": user}, nil)
	}
	return &sandbox{d, b}
}

func (s *sandbox) checkpoint(slot, id, processes string) (h held) {
	s.Driver.T.Helper()
	s.Call("slot.checkpoint", testdriver.Params{"slot": slot, "checkpoint": id, "processes": processes}, &h)
	return h
}

func (s *sandbox) restore(slot, id string) (r restored) {
	s.Driver.T.Helper()
	s.Call("slot.restore", testdriver.Params{"slot": slot, "checkpoint": id}, &r)
	if !r.Clean {
		s.Driver.T.Fatalf("%+v", r)
	}
	return r
}

func (s *sandbox) out(slot, text string) string {
	s.Driver.T.Helper()
	e, out, err := s.Sh(slot, text)
	if e.ExitCode != 0 {
		s.Driver.T.Fatalf("%s: %+v %s", text, e, err)
	}
	return strings.TrimSpace(out)
}

func (s *sandbox) inSession(slot, session, text string) string {
	s.Driver.T.Helper()
	p := testdriver.Shell(slot, text)
	p["session"] = session
	k := s.Call("exec.run", p, nil)
	return strings.TrimSpace(string(k.Bytes(1)))
}

func (s *sandbox) layers() []string {
	s.Driver.T.Helper()
	entries, err := os.ReadDir(filepath.Join(s.Base, "layers"))
	if err != nil && !os.IsNotExist(err) {
		s.Driver.T.Fatal(err)
	}
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

func TestInTheSandboxSessionsContinueFromACheckpoint(t *testing.T) {
	for _, processes := range []string{"keep", "end"} {
		t.Run(processes, func(t *testing.T) {
			s := openSandbox(t, "a", "b")
			s.Call("slot.workdir", testdriver.Params{"slot": "a", "path": "/srv/project"}, nil)
			var session struct{ Session string }
			s.Call("session.open", testdriver.Params{"slot": "a"}, &session)
			s.inSession("a", session.Session, "mkdir deep; cd deep; x='it is'; f() { echo $x $1; }; umask 027; export Y=y")
			h := s.checkpoint("a", "cp", processes)
			if h.Copied == (processes == "end") || h.Workdir != "/srv/project" ||
				h.Sessions[session.Session].Cwd != "/srv/project/deep" {
				t.Errorf("%+v", h)
			}
			const show = "f here; pwd; umask; printenv Y"
			want := "it is here\n/srv/project/deep\n0027\ny"
			if out := s.inSession("a", session.Session, show); out != want {
				t.Errorf("the slot itself: %q", out)
			}
			s.inSession("a", session.Session, "x=later; cd /; rm -rf /srv/project")
			for _, slot := range []string{"b", "a", "a"} {
				r := s.restore(slot, "cp")
				again := r.Sessions[session.Session]
				if again.Session == "" || again.Cwd != "/srv/project/deep" || r.Workdir != "/srv/project" {
					t.Fatalf("%+v", r)
				}
				if out := s.inSession(slot, again.Session, show); out != want {
					t.Errorf("%s: %q", slot, out)
				}
				if out := s.out(slot, "pwd"); out != "/srv/project" {
					t.Error(out)
				}
				s.inSession(slot, again.Session, "x=changed; cd /")
			}
			p := testdriver.Shell("a", "true")
			p["session"] = session.Session
			s.Fails("no_session", "exec.run", p)
		})
	}
}

func TestInTheSandboxWritingProcessGoesOnBesideACheckpoint(t *testing.T) {
	s := openSandbox(t, "a", "b")
	id, _ := s.Spawn(testdriver.Shell("a", "i=0; while :; do i=$((i+1)); echo $i > /workspace/next; mv /workspace/next /workspace/count; done"))
	stopped, _ := s.Spawn(testdriver.Shell("a", "kill -STOP $$; touch /workspace/woken"))
	s.out("a", "until [ -s count ] && ps -eo stat= | grep -q T; do :; done")
	busy := s.Fails("busy", "slot.checkpoint", testdriver.Params{"slot": "a", "checkpoint": "r", "processes": "refuse"})
	if detail, _ := json.Marshal(busy.Detail); !strings.Contains(string(detail), "count") {
		t.Errorf("%s", detail)
	}
	for n := range 5 {
		h := s.checkpoint("a", fmt.Sprint("cp", n), "keep")
		if !h.Copied || h.Killed != nil {
			t.Fatalf("%+v", h)
		}
		s.restore("b", fmt.Sprint("cp", n))
		if out := s.out("b", "ls; ps -e -o comm= | grep -c sh"); !strings.HasPrefix(out, "count\n") &&
			!strings.HasPrefix(out, "count\nnext\n") {
			t.Errorf("%q", out)
		}
		s.out("a", "n=$(cat count); until [ $(cat count) -gt $n ]; do :; done")
	}
	if out := s.out("a", "ls"); strings.Contains(out, "woken") {
		t.Error("a process that the tenant had stopped continued")
	}
	h := s.checkpoint("a", "last", "end")
	if h.Killed == nil || h.Killed.Found < 2 || h.Killed.Left != 0 {
		t.Errorf("%+v", h.Killed)
	}
	for _, process := range []string{id, stopped} {
		if e := s.Wait(process); e.Signal == nil || *e.Signal != 9 {
			t.Errorf("%+v", e)
		}
	}
}

func TestInTheSandboxCheckpointDuringACallChangesNothing(t *testing.T) {
	s := openSandbox(t, "a")
	s.out("a", "mkfifo /workspace/go")
	k := s.Begin("exec.run", testdriver.Shell("a", "echo begun > begun; cat go"), 1<<20)
	s.out("a", "until [ -s begun ]; do :; done")
	for _, processes := range []string{"keep", "refuse", "end"} {
		s.Fails("busy", "slot.checkpoint", testdriver.Params{"slot": "a", "checkpoint": "cp", "processes": processes})
	}
	write := s.Begin("file.write", testdriver.Params{"slot": "a", "path": "half", "parents": true, "append": false}, 1<<20)
	s.Sh("a", "echo done > go")
	if err := k.Finish(nil); err != nil {
		t.Fatal(err)
	}
	write.Send([]byte("half"), false)
	for n := 0; ; n++ { // until the write has begun
		p := testdriver.Params{"slot": "a", "checkpoint": fmt.Sprint("early", n), "processes": "keep"}
		if e := s.Begin("slot.checkpoint", p, 1<<20).Finish(nil); e != nil {
			if e.Kind != "busy" {
				t.Fatal(e)
			}
			break
		}
		s.Call("checkpoint.drop", testdriver.Params{"checkpoint": p["checkpoint"]}, nil)
	}
	write.Send([]byte("whole"), true)
	if err := write.Finish(nil); err != nil {
		t.Fatal(err)
	}
	s.checkpoint("a", "cp", "keep")
	if len(s.layers()) != 1 {
		t.Error(s.layers())
	}
}

func TestInTheSandboxCheckpointIsMadeOnceAndDropped(t *testing.T) {
	s := openSandbox(t, "a", "b", "c")
	s.Fails("no_checkpoint", "slot.restore", testdriver.Params{"slot": "a", "checkpoint": "cp"})
	s.Fails("bad_request", "slot.restore", testdriver.Params{"slot": "a"})
	s.Fails("bad_request", "slot.checkpoint", testdriver.Params{"slot": "a", "checkpoint": "../x", "processes": "keep"})
	s.Fails("bad_request", "slot.checkpoint", testdriver.Params{"slot": "a", "checkpoint": "x", "processes": "pause"})
	s.out("a", "echo one > file")
	first := s.checkpoint("a", "cp", "end")
	s.out("a", "echo two > file")
	if again := s.checkpoint("a", "cp", "end"); !slices.Equal(again.Layers, first.Layers) {
		t.Errorf("%+v %+v", first, again)
	}
	s.Fails("bad_request", "slot.checkpoint", testdriver.Params{"slot": "b", "checkpoint": "cp", "processes": "keep"})
	var info struct {
		Layers []struct {
			Layer   string
			Entries int
		}
	}
	s.Call("checkpoint.info", testdriver.Params{"checkpoint": "cp"}, &info)
	if len(info.Layers) != 1 || info.Layers[0].Entries < 2 || info.Layers[0].Layer != first.Layers[0] {
		t.Errorf("%+v", info)
	}
	s.Call("slot.restore", testdriver.Params{"slot": "b", "checkpoint": "cp", "begin": true}, nil)
	s.restore("c", "cp")
	for range 2 {
		s.Call("checkpoint.drop", testdriver.Params{"checkpoint": "cp"}, nil)
	}
	s.Fails("no_checkpoint", "slot.restore", testdriver.Params{"slot": "a", "checkpoint": "cp"})
	s.Fails("no_checkpoint", "checkpoint.info", testdriver.Params{"checkpoint": "cp"})
	if out := s.out("c", "cat file"); out != "one" {
		t.Error(out)
	}
	s.out("b", "rm file")
	s.Call("slot.restore", testdriver.Params{"slot": "b"}, nil)
	if out := s.out("b", "cat file"); out != "one" {
		t.Error(out)
	}
	for _, slot := range []string{"a", "b", "c"} {
		if n := len(s.layers()); n != 1 {
			t.Errorf("%d layers before the reset of %s", n, slot)
		}
		var r struct{ Clean bool }
		s.Call("slot.reset", testdriver.Params{"slot": slot}, &r)
		if e, _, _ := s.Sh(slot, "cat file"); e.ExitCode == 0 || !r.Clean {
			t.Errorf("%s still has the file", slot)
		}
	}
	if left := s.layers(); len(left) > 0 {
		t.Error(left)
	}
	s.Fails("bad_request", "slot.restore", testdriver.Params{"slot": "b"})
}

func TestInTheSandboxCanceledCopyLeavesNothing(t *testing.T) {
	s := openSandbox(t, "a")
	s.out("a", "mkdir t; cd t; for i in $(seq 20000); do echo > $i; done")
	id, _ := s.Spawn(testdriver.Shell("a", "while :; do date +%N > /workspace/tick; done"))
	k := s.Begin("slot.checkpoint", testdriver.Params{"slot": "a", "checkpoint": "cp", "processes": "keep"}, 1<<20)
	for len(s.layers()) == 0 { // the copy has begun
	}
	k.Cancel()
	if err := k.Finish(nil); err == nil || err.Kind != "canceled" {
		t.Fatalf("%+v", err)
	}
	if left := s.layers(); len(left) > 0 {
		t.Error(left)
	}
	s.Fails("no_checkpoint", "slot.restore", testdriver.Params{"slot": "a", "checkpoint": "cp"})
	s.out("a", "n=$(cat tick); until [ \"$(cat tick)\" != \"$n\" ]; do :; done")
	s.Call("proc.kill", testdriver.Params{"process": id}, nil)
	s.checkpoint("a", "cp", "keep")
}

// A restore that was given up may begin after the reset for the next holder.
func TestInTheSandboxOvertakenRestoreTouchesNothing(t *testing.T) {
	s := openSandbox(t, "a")
	s.out("a", "echo first > file")
	s.checkpoint("a", "cp", "keep")
	s.Next++
	late := testdriver.NewTalk(s.Driver, s.Next)
	s.Talks[late.ID] = late
	s.Call("slot.reset", testdriver.Params{"slot": "a"}, nil)
	under := s.Begin("exec.run", testdriver.Shell("a", "echo > next; mkfifo go; cat go"), 1<<20)
	s.out("a", "until [ -p go ]; do :; done")
	p := testdriver.Params{"slot": "a", "checkpoint": "cp", "begin": true}
	s.Write(testdriver.EncodeRequest(late.ID, "slot.restore", p, 1<<20))
	if err := late.Finish(nil); err == nil || err.Kind != "slot_closed" {
		t.Errorf("%+v", err)
	}
	s.out("a", "echo goes on > go")
	if err := under.Finish(nil); err != nil || string(under.Bytes(1)) != "goes on\n" {
		t.Errorf("%+v %q", err, under.Bytes(1))
	}
	if out := s.out("a", "ls"); out != "go\nnext" {
		t.Errorf("%q", out)
	}
	s.Call("checkpoint.drop", testdriver.Params{"checkpoint": "cp"}, nil)
	if left := s.layers(); len(left) > 0 {
		t.Error(left)
	}
}

// The request of a checkpoint that was given up may arrive after its drop.
func TestInTheSandboxDroppedCheckpointIsNotMadeLater(t *testing.T) {
	s := openSandbox(t, "a")
	s.out("a", "echo > file")
	s.Call("checkpoint.drop", testdriver.Params{"checkpoint": "cp"}, nil)
	s.Fails("canceled", "slot.checkpoint", testdriver.Params{"slot": "a", "checkpoint": "cp", "processes": "keep"})
	if left := s.layers(); len(left) > 0 {
		t.Error(left)
	}
	s.checkpoint("a", "other", "keep")
}

// Restores and resets at the same time have the effect of the one with the highest id.
func TestInTheSandboxLastRequestDecides(t *testing.T) {
	s := openSandbox(t, "a")
	s.out("a", "echo held > file")
	s.checkpoint("a", "cp", "keep")
	restore := testdriver.Params{"slot": "a", "checkpoint": "cp", "begin": true}
	for n := range 20 {
		first := s.Begin("slot.restore", restore, 1<<20)
		time.Sleep(time.Duration(n) * time.Millisecond)
		last := s.Begin("slot.reset", testdriver.Params{"slot": "a"}, 1<<20)
		if err := last.Finish(nil); err != nil {
			t.Fatal(err)
		}
		if out := s.out("a", "ls"); out != "" {
			t.Errorf("after %d ms: %q", n, out)
		}
		if err := first.Finish(nil); err != nil && err.Kind != "slot_closed" {
			t.Error(err)
		}
	}
	s.Call("checkpoint.drop", testdriver.Params{"checkpoint": "cp"}, nil)
	if left := s.layers(); len(left) > 0 {
		t.Error(left)
	}
}

// The agent stops processes as a whole: a cancel meanwhile leaves none of them stopped.
func TestInTheSandboxCanceledPauseLeavesNoProcessStopped(t *testing.T) {
	s := openSandbox(t, "a")
	s.Spawn(testdriver.Shell("a", "for i in $(seq 20); do (while :; do echo $i > tick$i; sleep 0.01; done) & done; wait"))
	s.out("a", "until [ -s tick20 ]; do :; done")
	for n := range 12 {
		p := testdriver.Params{"slot": "a", "checkpoint": fmt.Sprint("cp", n), "processes": "keep"}
		k := s.Begin("slot.checkpoint", p, 1<<20)
		time.Sleep(time.Duration(n) * 200 * time.Microsecond)
		k.Cancel()
		if err := k.Finish(nil); err != nil && err.Kind != "canceled" {
			t.Fatal(err)
		}
		if out := s.out("a", "ps -eo stat= | grep -c T || true"); out != "0" {
			t.Fatalf("after %d steps %s processes are stopped", n, out)
		}
	}
}

func TestInTheSandboxFreezeKeepsTheOutputOfEndedProcesses(t *testing.T) {
	s := openSandbox(t, "a")
	short, _ := s.Spawn(testdriver.Shell("a", "echo short"))
	long, _ := s.Spawn(testdriver.Shell("a", "seq 200000"))
	s.Wait(short)
	s.Wait(long)
	if h := s.checkpoint("a", "cp", "end"); h.Copied || h.Killed != nil {
		t.Errorf("%+v", h)
	}
	if out, _ := s.Log(short, 1, 0, 100); string(out) != "short\n" {
		t.Errorf("%q", out)
	}
	if out, r := s.Log(long, 1, -200<<10, 1<<20); !strings.HasSuffix(string(out), "\n200000\n") || len(out) != 200<<10 {
		t.Errorf("%d %v", len(out), r)
	}
}

func TestInTheSandboxConnectionsOutliveACopy(t *testing.T) {
	s := openSandbox(t, "a")
	s.out("a", "mkdir t; cd t; for i in $(seq 3000); do echo > $i; done")
	k := s.Begin("net.listen", testdriver.Params{"slot": "a", "path": "/workspace/socket"}, 1<<20)
	k.Until("listening", func() bool { return k.CountEvents("listening") > 0 })
	s.Fails("busy", "slot.checkpoint", testdriver.Params{"slot": "a", "checkpoint": "cp", "processes": "refuse"})
	if h := s.checkpoint("a", "cp", "keep"); !h.Copied {
		t.Errorf("%+v", h)
	}
	if h := s.checkpoint("a", "end", "end"); h.Copied {
		t.Errorf("%+v", h)
	}
	if err := k.Finish(nil); err == nil || err.Kind != "slot_closed" {
		t.Errorf("%+v", err)
	}
}

func TestInTheSandboxCheckpointOfAnImagesUser(t *testing.T) {
	s := openSandboxAs(t, "daemon", "a", "b")
	s.out("a", "echo mine > file; chmod 600 file")
	s.Spawn(testdriver.Shell("a", "while :; do date +%N > tick; done"))
	s.out("a", "until [ -s tick ]; do :; done")
	for _, processes := range []string{"keep", "end"} {
		if h := s.checkpoint("a", processes, processes); h.Copied == (processes == "end") {
			t.Errorf("%+v", h)
		}
		s.restore("b", processes)
		if out := s.out("b", "id -un; cat file; stat -c %U:%a file . /root /tmp"); out !=
			"daemon\nmine\ndaemon:600\ndaemon:755\nroot:700\nroot:1777" {
			t.Errorf("%q", out)
		}
	}
}

func TestInTheSandboxCheckpointsAtTheSameTime(t *testing.T) {
	s := openSandbox(t, "a", "b")
	s.out("a", "mkdir t; cd t; for i in $(seq 500); do echo > $i; done")
	var talks []*testdriver.Talk
	for n := range 4 {
		for _, slot := range []string{"a", "b"} {
			p := testdriver.Params{"slot": slot, "checkpoint": fmt.Sprint(slot, n), "processes": "end"}
			talks = append(talks, s.Begin("slot.checkpoint", p, 1<<20))
		}
		p := testdriver.Params{"slot": "a", "checkpoint": "a0", "processes": "end"} // the same again
		talks = append(talks, s.Begin("slot.checkpoint", p, 1<<20))
	}
	for _, k := range talks {
		if err := k.Finish(nil); err != nil {
			t.Error(err)
		}
	}
	for n := range 4 {
		s.restore("b", fmt.Sprint("a", n))
		if out := s.out("b", "ls t | wc -l"); out != "500" {
			t.Error(n, out)
		}
	}
}

func TestInTheSandboxCheckpointAndRestoreOutliveTheirStream(t *testing.T) {
	s := openSandbox(t, "a")
	s.out("a", "mkdir t; cd t; for i in $(seq 5000); do echo > $i; done")
	s.Spawn(testdriver.Shell("a", "sleep 1000"))
	for _, request := range []struct {
		method string
		params testdriver.Params
	}{
		{"slot.checkpoint", testdriver.Params{"slot": "a", "checkpoint": "kept", "processes": "keep"}},
		{"slot.checkpoint", testdriver.Params{"slot": "a", "checkpoint": "ended", "processes": "end"}},
		{"slot.restore", testdriver.Params{"slot": "a", "checkpoint": "kept"}},
	} {
		k := s.Begin(request.method, request.params, 1<<20)
		s.Cut()
		s.Reopen(s.Sandbox)
		if err := k.Finish(nil); err != nil {
			t.Fatalf("%+v: %+v", request, err)
		}
	}
	if out := s.out("a", "ls t | wc -l"); out != "5000" || len(s.layers()) != 2 {
		t.Error(out, s.layers())
	}
}
