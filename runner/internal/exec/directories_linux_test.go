package exec_test

import (
	"fmt"
	"strings"
	"testing"

	"hermes-exec/runner/internal/testdriver"
	"hermes-exec/runner/internal/wire"
)

// openHost is a runner on a host, with slots without roots of their own.
func openHost(t *testing.T, level string, slots ...string) *sandbox {
	t.Helper()
	b, d := testdriver.Open(t)
	for _, slot := range slots {
		d.Call("slot.create", testdriver.Params{"slot": slot, "level": level, "floor": level, "network": true,
			"private_root": true}, nil)
	}
	return &sandbox{d, b}
}

// hostLevels are those of which this machine has slots without roots of their own.
func hostLevels() []string {
	levels := []string{"none"}
	facts := testdriver.Probe()
	if facts.Switch {
		levels = append(levels, "uid")
	}
	if facts.Has("namespaces") {
		levels = append(levels, "namespaces")
	}
	return levels
}

func (s *sandbox) hold(slot, id, processes string) (h held) {
	s.Driver.T.Helper()
	s.Call("slot.checkpoint", testdriver.Params{"slot": slot, "checkpoint": id, "processes": processes,
		"holds": "directories"}, &h)
	return h
}

func TestSessionsMoveToTheDirectoriesOfAnotherSlot(t *testing.T) {
	for _, level := range hostLevels() {
		t.Run(level, func(t *testing.T) {
			s := openHost(t, level, "a", "aa", "b")
			var session, fresh struct{ Session string }
			s.Call("session.open", testdriver.Params{"slot": "a"}, &session)
			s.Call("session.open", testdriver.Params{"slot": "a"}, &fresh)
			where := s.out("a", "pwd; echo $HOME")
			s.inSession("a", session.Session, "mkdir d; cd d; export VENV=$PWD/venv; list=(\"$HOME/x y\"); f() { echo $PWD "+
				strings.Fields(where)[0]+"/fixed; }; umask 027")
			s.Call("slot.workdir", testdriver.Params{"slot": "a", "path": strings.Fields(where)[0] + "/d"}, nil)
			h := s.hold("a", "cp", "keep")
			if len(h.Layers) != 1 || !h.Copied || h.Sessions[session.Session].Cwd != strings.Fields(where)[0]+"/d" ||
				len(h.Directories) < 3 || strings.Join(h.Directories[:2], "\n") != where || h.Workdir != h.Sessions[session.Session].Cwd {
				t.Fatalf("%+v, %s", h, where)
			}
			s.inSession("a", session.Session, "cd /; VENV=later")
			for _, slot := range []string{"aa", "b", "a"} {
				here := s.out(slot, "echo $HOME")
				r := s.restore(slot, "cp")
				workspace := strings.TrimSuffix(r.Workdir, "/d")
				again := r.Sessions[session.Session]
				show := s.inSession(slot, again.Session, "pwd; echo $VENV; echo \"${list[0]}\"; f; umask; cd - > /dev/null; pwd")
				expected := fmt.Sprintf("%[1]s/d\n%[1]s/d/venv\n%[2]s/x y\n%[1]s/d %[1]s/fixed\n0027\n%[1]s", workspace, here)
				if show != expected || r.Workdir != again.Cwd {
					t.Errorf("slot %s:\n%s\nwant\n%s", slot, show, expected)
				}
				if out := s.out(slot, "pwd"); out != r.Workdir {
					t.Errorf("%q, not %q", out, r.Workdir)
				}
				if out := s.inSession(slot, r.Sessions[fresh.Session].Session, "pwd; echo $HOME"); out != workspace+"\n"+here {
					t.Errorf("%q", out)
				}
			}
		})
	}
}

func TestProcessesBesideACheckpointOfDirectories(t *testing.T) {
	for _, level := range hostLevels() {
		t.Run(level, func(t *testing.T) {
			s := openHost(t, level, "a", "b")
			id, _ := s.Spawn(testdriver.Shell("a", "i=0; while :; do i=$((i+1)); echo $i > next; mv next count; done"))
			s.out("a", "until [ -s count ]; do :; done; seq 3000 > large")
			s.Fails("busy", "slot.checkpoint", testdriver.Params{"slot": "a", "checkpoint": "r", "processes": "refuse",
				"holds": "directories"})
			if h := s.hold("a", "keep", "keep"); h.Killed != nil {
				t.Errorf("%+v", h)
			}
			s.out("a", "n=$(cat count); until [ $(cat count) -gt $n ]; do :; done")
			h := s.hold("a", "end", "end")
			if h.Killed == nil || h.Killed.Found == 0 || h.Killed.Left != 0 {
				t.Errorf("%+v", h.Killed)
			}
			if e := s.Wait(id); e.Signal == nil || *e.Signal != 9 {
				t.Errorf("%+v", e)
			}
			count := s.out("a", "cat count; ls")
			s.restore("b", "end")
			if out := s.out("b", "cat count; ls"); out != count {
				t.Errorf("%q, not %q: the process ran after the copy", out, count)
			}
			s.restore("b", "keep")
			if out := s.out("b", "cat large | wc -l; [ $(cat count) -gt 0 ] && echo old"); out != "3000\nold" {
				t.Errorf("%q", out)
			}
			if h := s.hold("a", "none", "end"); h.Killed != nil {
				t.Errorf("%+v", h.Killed)
			}
		})
	}
}

func TestForkOfDirectoriesReturnsToItsCheckpoint(t *testing.T) {
	s := openHost(t, "none", "a", "b")
	s.out("a", "echo one > file")
	s.hold("a", "cp", "keep")
	s.Call("slot.restore", testdriver.Params{"slot": "b", "checkpoint": "cp", "begin": true}, nil)
	s.Call("checkpoint.drop", testdriver.Params{"checkpoint": "cp"}, nil)
	s.out("b", "echo two > file")
	s.Call("slot.restore", testdriver.Params{"slot": "b"}, nil)
	if out := s.out("b", "cat file"); out != "one" || len(s.layers()) != 1 {
		t.Errorf("%q %v", out, s.layers())
	}
	s.Call("slot.reset", testdriver.Params{"slot": "b"}, nil)
	if out := s.out("b", "ls"); out != "" || len(s.layers()) != 0 {
		t.Errorf("%q %v", out, s.layers())
	}
}

func TestCheckpointOfDirectoriesIsRefused(t *testing.T) {
	s := openHost(t, "none", "a")
	p := testdriver.Params{"slot": "a", "checkpoint": "cp", "processes": "keep", "holds": "root"}
	s.Fails("no_layers", "slot.checkpoint", p)
	p["holds"] = "all"
	s.Fails("bad_request", "slot.checkpoint", p)
	delete(p, "holds")
	s.Fails("no_layers", "slot.checkpoint", p)
}

func TestInTheSandboxCheckpointsOfAnotherKindAreRefused(t *testing.T) {
	s := openSandbox(t, "own")
	s.Call("slot.create", testdriver.Params{"slot": "host", "level": "none", "floor": "none", "network": true,
		"private_root": true}, nil)
	s.out("host", "echo mine > mine")
	s.out("own", "echo mine > mine")
	s.hold("host", "directories", "keep")
	s.checkpoint("own", "root", "keep")
	s.Fails("no_layers", "slot.restore", testdriver.Params{"slot": "host", "checkpoint": "root"})
	s.Fails("no_layers", "slot.restore", testdriver.Params{"slot": "own", "checkpoint": "directories"})
	s.Fails("no_layers", "slot.checkpoint", testdriver.Params{"slot": "own", "checkpoint": "x", "processes": "keep",
		"holds": "directories"})
	for _, slot := range []string{"own", "host"} {
		if out := s.out(slot, "cat mine"); out != "mine" {
			t.Errorf("%q", out)
		}
	}
}

func TestCheckpointOfDirectoriesMovesToAnotherSandbox(t *testing.T) {
	for _, level := range hostLevels() {
		t.Run(level, func(t *testing.T) {
			one, two := openHost(t, level, "a"), openHost(t, level, "b")
			var session struct{ Session string }
			one.Call("session.open", testdriver.Params{"slot": "a"}, &session)
			one.inSession("a", session.Session, "mkdir deep; cd deep; export HERE=$PWD")
			one.out("a", "echo 1 > one; ln one two; mkfifo fifo; truncate -s 100000 hole; echo home > $HOME/h; echo t > $TMPDIR/t; "+
				"chmod 4711 one; touch -d 1960-01-01 one deep")
			digest := "for d in . $HOME $TMPDIR; do cd $d; find . -printf '%P %y %m %n %T@ %l %b\\n' | sort; " +
				"find . -type f | sort | xargs -r sha256sum; find . ! -user $(id -u); done"
			want := one.out("a", digest)
			one.hold("a", "cp", "keep")
			one.move("cp", two, "moved", true)
			r := two.restore("b", "moved")
			if got := two.out("b", digest); got != want {
				t.Errorf("%s\n\n%s", got, want)
			}
			here := two.out("b", "pwd") + "/deep"
			if out := two.inSession("b", r.Sessions[session.Session].Session, "pwd; echo $HERE"); out != here+"\n"+here {
				t.Errorf("%q", out)
			}
			for _, id := range []string{"moved", "cp"} {
				two.Call("checkpoint.drop", testdriver.Params{"checkpoint": id}, nil)
			}
			if left := two.layers(); len(left) > 0 {
				t.Error(left)
			}
		})
	}
}

func TestCheckpointOfDirectoriesIsOneLayerOfDirectories(t *testing.T) {
	one, two := openHost(t, "none", "a"), openHost(t, "none", "b")
	one.out("a", "echo held > file")
	one.hold("a", "cp", "keep")
	c := one.get("cp", true)
	archive := one.getLayer("cp", c.Layers[0].Layer, "workspace")
	put := func(id string) {
		t.Helper()
		k := two.beginPut(id, "1", "workspace", 1<<30)
		k.Send(archive, true)
		if err := k.Finish(nil); err != nil {
			t.Fatal(err)
		}
	}
	layer := map[string]string{"put": "1"}
	with := func(id string, origin any, layers ...any) testdriver.Params {
		p := testdriver.Params{"checkpoint": id, "layers": layers, "workdir": c.Workdir, "sessions": c.Sessions}
		if origin != nil {
			p["origin"] = origin
		}
		return p
	}
	put("cp")
	for name, p := range map[string]testdriver.Params{
		"no layers":           with("cp", c.Origin),
		"two layers":          with("cp", c.Origin, layer, layer),
		"no directory":        with("cp", map[string]any{"dir": "", "paths": map[string]string{}}, layer),
		"the whole root":      with("cp", map[string]any{"dir": "/", "paths": map[string]string{}}, layer),
		"a name with parents": with("cp", map[string]any{"dir": "/x/..", "paths": map[string]string{}}, layer),
		"another directory":   with("cp", map[string]any{"dir": "/x", "paths": map[string]string{"etc": "/etc"}}, layer),
		"a relative path":     with("cp", map[string]any{"dir": "/x", "paths": map[string]string{"home": "h"}}, layer),
	} {
		if err := two.Fails("bad_request", "checkpoint.put", p); err.Message == "" {
			t.Error(name)
		}
	}
	two.Call("checkpoint.put", with("cp", c.Origin, layer), nil)
	two.restore("b", "cp")
	if out := two.out("b", "cat file"); out != "held" {
		t.Errorf("%q", out)
	}
	put("fixed")
	fixed := map[string]any{"dir": "/x", "paths": map[string]string{"home": "/home/slot"}}
	two.Call("checkpoint.put", with("fixed", fixed, layer), nil)
	err := two.Fails("other_root", "slot.restore", testdriver.Params{"slot": "b", "checkpoint": "fixed"})
	if !strings.Contains(err.Message, "home at /home/slot") {
		t.Error(err.Message)
	}
	if out := two.out("b", "cat file"); out != "held" {
		t.Errorf("%q after a refused restore", out)
	}
}

func TestInTheSandboxLayersOfDirectoriesAreNoneOfTheRoot(t *testing.T) {
	s := openSandbox(t, "own")
	s.out("own", "echo mine > mine")
	s.checkpoint("own", "root", "keep")
	s.Call("slot.create", testdriver.Params{"slot": "host", "level": "none", "floor": "none", "network": true,
		"private_root": true}, nil)
	s.out("host", "mkdir x; ln -s /etc x/proc")
	held := s.hold("host", "directories", "keep")
	root, directories := s.get("root", true), s.get("directories", true)
	put := func(from, layer, directory, name string) *wire.Error {
		t.Helper()
		k := s.beginPut("made", name, directory, 1<<30)
		k.Send(s.getLayer(from, layer, directory), true)
		return k.Finish(nil)
	}
	whole := root.Layers[0]
	with := func(origin any, layer map[string]string) testdriver.Params {
		p := testdriver.Params{"checkpoint": "made", "layers": []any{layer}, "workdir": "/", "sessions": map[string]any{}}
		if origin != nil {
			p["origin"] = origin
		}
		return p
	}
	for _, p := range []testdriver.Params{
		with(nil, map[string]string{"put": "2"}), with(nil, map[string]string{"have": held.Layers[0]}),
		with(directories.Origin, map[string]string{"put": "1"}), with(directories.Origin, map[string]string{"have": whole.Layer}),
	} {
		if err := put("root", whole.Layer, whole.Directories[0], "1"); err != nil {
			t.Fatal(err)
		}
		if err := put("directories", held.Layers[0], "workspace", "1"); err == nil || err.Kind != "bad_request" {
			t.Errorf("a part of another kind: %v", err)
		}
		if err := put("directories", held.Layers[0], "workspace", "2"); err != nil {
			t.Fatal(err)
		}
		s.Fails("bad_request", "checkpoint.put", p)
		if left := s.layers(); len(left) != 2 {
			t.Errorf("%v are left", left)
		}
	}
}
