package slots

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"hermes-exec/runner/internal/ipc"
	"hermes-exec/runner/internal/isolation"
	"hermes-exec/runner/internal/wipe"
)

func needs(t *testing.T, level string) {
	t.Helper()
	if !probed().Has(level) {
		t.Skipf("level %s: %s", level, probed().Reasons[level])
	}
}

func TestPrivateRootShowsTheSystemAndNothingElse(t *testing.T) {
	needs(t, isolation.Namespaces)
	hidden := t.TempDir()
	if err := os.WriteFile(hidden+"/tool", []byte("#!/bin/sh\necho from hidden\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("tool", hidden+"/alias"); err != nil {
		t.Fatal(err)
	}
	b := newSandbox(t, probed())
	facts := b.create(CreateParams{Slot: "a", Network: true, PrivateRoot: true,
		ReadOnlyPaths: []ipc.Bytes{ipc.Bytes(hidden)}})
	if facts.Isolation.Level != isolation.Namespaces || facts.Workspace != "/workspace" {
		t.Errorf("%+v", facts)
	}
	for path, want := range map[string]string{
		"ls -A /home /root /srv /mnt /run 2>/dev/null | grep -c passwd || true": "0",
		"ls /home":                              facts.UserName,
		"test -e /etc/shadow || echo none":      "none",
		"test -e /etc/gshadow || echo none":     "none",
		"test -e /etc/sudoers || echo none":     "none",
		"test -e /etc/ssl/private || echo none": "none",
		"test -e /root || echo none":            "none",
		"ls /var/lib /var/log":                  "/var/lib:\n\n/var/log:",
		"id -un":                                facts.UserName,
		"cat /proc/sys/kernel/hostname":         "slot",
		"ls -A /dev/shm /tmp /var/tmp /run | grep -v : | grep -v -e lock -e Test -e hermes-exec | tr -d '\\n'": "",
		"test $(ls -d /proc/[0-9]* | wc -l) -lt 7 && echo few":                                                 "few",
		hidden + "/alias": "from hidden",
		"touch /usr/x /etc/x /x /home/x " + hidden +
			"/x 2>/dev/null; echo $?": "1",
		"echo > /dev/null && head -c 3 /dev/zero | wc -c && test -w /dev/shm && test -c /dev/full && test -L /dev/fd " +
			"&& echo ok": "3\nok",
		"touch /dev/x 2>/dev/null; echo $?": "1",
		"grep -E 'Cap(Inh|Prm|Eff|Amb)' /proc/self/status | tr -d '\\n\\t '; grep NoNewPrivs /proc/self/status | tr " +
			"-d '\\t'": "CapInh:0000000000000000CapPrm:0000000000000000CapEff:0000000000000000CapAmb:0000000000000000NoNewPrivs:1",
		"cat /proc/self/oom_score_adj": "1000",
		// The agent takes its own back once its fork has returned, which a busy machine puts off.
		"for i in $(seq 50); do [ $(cat /proc/1/oom_score_adj) = 500 ] && break; sleep 0.1; done; cat " +
			"/proc/1/oom_score_adj": "500",
		"ls /proc/1/fd 2>/dev/null || echo shut":        "shut",
		"cat /proc/1/mem 2>/dev/null || echo shut":      "shut",
		"ls -d " + b.base + " 2>/dev/null || echo none": "none",
	} {
		if got := b.sh("a", path); got != want {
			t.Errorf("%s\n  got  %q\n  want %q", path, got, want)
		}
	}
}

func TestSlotsDoNotReachEachOther(t *testing.T) {
	eachLevel(t, func(t *testing.T, b *sandbox, one SlotFacts) {
		level := one.Isolation.Level
		if level == isolation.None && os.Geteuid() != 0 {
			t.Skip("slots without a uid of their own share everything")
		}
		two := b.create(CreateParams{Slot: "b", Level: level, Network: true, PrivateRoot: true})
		victim, err := b.spawn("b", nil, "sleep", "1000")
		if err != nil {
			t.Fatal(err)
		}
		b.sh("b", "echo secret > secret; echo secret > $HOME/secret; chmod 777 secret")
		theirs := filepath.Join(b.base, "slots", "b", "workspace")
		checks := []string{
			"cat " + theirs + "/secret", "ls " + theirs, "touch " + theirs + "/mine", "cat " +
				filepath.Join(b.base, "slots", "b", "home", "secret"), "ls " + b.base,
		}
		for _, attack := range checks {
			if out, e := b.run("a", "/bin/sh", "-c", attack+" 2>&1"); e.ExitCode == 0 {
				t.Errorf("%s worked: %s", attack, out)
			}
		}
		pid := victim.spawned.PID
		if level == isolation.Namespaces {
			// The number means another process there, or none.
			if n := b.sh("a", "cat /proc/[0-9]*/cmdline | tr '\\0' ' ' | grep -c '[s]leep 1000' || true"); n != "0" {
				t.Errorf("a sees b's process")
			}
		} else {
			b.run("a", "/bin/sh", "-c", fmt.Sprintf("kill -9 %d", pid))
			b.run("a", "/bin/sh", "-c", fmt.Sprintf("cat /proc/%d/environ", pid))
		}
		select {
		case <-victim.exit:
			t.Error("a killed b's process")
		case <-time.After(50 * time.Millisecond):
		}
		if one.UID == two.UID && os.Geteuid() == 0 {
			t.Error("both have one uid")
		}
		if one.Isolation.Level == isolation.UID {
			mark := filepath.Base(t.TempDir())
			for _, dir := range []string{"/tmp", "/var/tmp", "/dev/shm"} {
				b.sh("a", "umask 077; echo mine > "+dir+"/"+mark+"; mkdir "+dir+"/"+mark+".d")
				if out, e := b.run("b", "/bin/sh", "-c", "cat "+dir+"/"+mark+" || rm -f "+dir+"/"+mark); e.ExitCode == 0 {
					t.Errorf("b reaches a's file in %s: %s", dir, out)
				}
			}
			b.sh("a", "chmod 777 . && touch open")
			if out, e := b.run("b", "/bin/sh", "-c", "ls "+string(one.Workspace)+" 2>&1"); e.ExitCode == 0 {
				t.Errorf("b reaches what a has opened to everybody: %s", out)
			}
			b.sh("a", "ls / > /dev/null && sh -c 'kill -0 $PPID'")
			if r, err := b.Reset(context.Background(), "a"); err != nil || !r.Clean {
				t.Fatalf("%+v %v", r, err)
			}
			if left, _ := filepath.Glob("/*/" + mark + "*"); len(left) > 0 {
				t.Errorf("a reset leaves %v", left)
			}
		}
	})
}

func TestNoNetworkIsLoopbackOnly(t *testing.T) {
	needs(t, isolation.Namespaces)
	host, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer host.Close()
	port := host.Addr().(*net.TCPAddr).Port
	if !probed().Loopback {
		t.Skip("no loopback can be had in a network namespace")
	}
	b := newSandbox(t, probed())
	b.create(CreateParams{Slot: "off", Network: false, PrivateRoot: true})
	b.create(CreateParams{Slot: "on", Network: true, PrivateRoot: true})
	if got := b.sh("off", "grep -c : /proc/net/dev"); got != "1" {
		t.Errorf("%s interfaces", got)
	}
	connect := func(slot string) error {
		h, err := b.Agent(context.Background(), slot)
		if err != nil {
			t.Fatal(err)
		}
		fds, err := h.Call(context.Background(), ipc.OpConnect, ipc.Connect{Host: "127.0.0.1", Port: port, TimeoutS: 5},
			nil)
		if err == nil {
			if len(fds) != 1 {
				t.Fatalf("%d descriptors", len(fds))
			}
			conn, err := net.FileConn(os.NewFile(uintptr(fds[0]), "connection"))
			if err != nil {
				t.Fatal(err)
			}
			conn.Close()
		}
		return err
	}
	if err := connect("off"); err == nil || kind(err) != "os ECONNREFUSED" {
		t.Errorf("off: %v", err)
	}
	if err := connect("on"); err != nil {
		t.Errorf("on: %v", err)
	}
	off, err := b.Agent(context.Background(), "off")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat("/proc/sys/net/ipv4/ip_unprivileged_port_start"); err != nil {
		t.Skip("ports below 1024 are for root only")
	}
	for _, own := range []int{80, port} { // the host has the other one
		fds, err := off.Call(context.Background(), ipc.OpListenTCP, ipc.ListenTCP{Host: "127.0.0.1", Port: own}, nil)
		if err != nil || len(fds) != 1 {
			t.Fatal(own, fds, err)
		}
		if own == port {
			if err := connect("off"); err != nil {
				t.Errorf("off: %v", err)
			}
		}
		_ = syscall.Close(fds[0])
	}
}

func TestManyAtOnce(t *testing.T) {
	eachLevel(t, func(t *testing.T, b *sandbox, _ SlotFacts) {
		var wg sync.WaitGroup
		gate := make(chan struct{}, 32)
		for i := range 300 {
			wg.Add(1)
			gate <- struct{}{}
			go func() {
				defer wg.Done()
				defer func() { <-gate }()
				want := i % 200
				c, err := b.spawn("a", nil, "/bin/sh", "-c", "exit "+strconv.Itoa(want))
				if err != nil {
					t.Error(err)
					return
				}
				defer c.out.Close()
				select {
				case e := <-c.exit:
					if e.ExitCode != want {
						t.Errorf("exit %d, want %d", e.ExitCode, want)
					}
				case <-time.After(60 * time.Second):
					t.Error("no exit")
				}
			}()
		}
		wg.Wait()
	})
}

func TestTerminal(t *testing.T) {
	eachLevel(t, func(t *testing.T, b *sandbox, _ SlotFacts) {
		h, err := b.Agent(context.Background(), "a")
		if err != nil {
			t.Fatal(err)
		}
		b.mu.Lock()
		b.token++
		token := b.token
		b.exits[token] = make(chan ipc.Exit, 1)
		exit := b.exits[token]
		b.mu.Unlock()
		s := ipc.Spawn{Token: token, Cwd: ipc.Bytes(h.Workdir()), PTY: &ipc.PTY{Rows: 33, Cols: 77},
			Argv: []ipc.Bytes{"/bin/sh", "-c",
				"stty size; test -t 0 && test -t 2 && echo tty; tty > /dev/null && echo > /dev/tty && echo open"}}
		for _, e := range h.Env {
			s.Env = append(s.Env, ipc.Bytes(e))
		}
		var spawned ipc.SpawnResult
		fds, err := h.Call(context.Background(), ipc.OpSpawn, s, &spawned)
		if err != nil || len(fds) != 1 {
			t.Fatal(err, fds)
		}
		master := os.NewFile(uintptr(fds[0]), "master")
		defer master.Close()
		e := <-exit
		out := make([]byte, 4096)
		total := 0
		for {
			n, err := master.Read(out[total:])
			total += n
			if err != nil {
				break
			}
		}
		if got := string(out[:total]); e.ExitCode != 0 || got != "33 77\r\ntty\r\n\r\nopen\r\n" {
			t.Errorf("exit %d %q", e.ExitCode, got)
		}
	})
}

func TestFilesAndSpill(t *testing.T) {
	eachLevel(t, func(t *testing.T, b *sandbox, facts SlotFacts) {
		h, err := b.Agent(context.Background(), "a")
		if err != nil {
			t.Fatal(err)
		}
		var result ipc.FileResult
		op := ipc.FileOp{Method: "file.write", Params: []byte(`{"path":"sub/x","parents":true}`),
			Workdir: facts.Workspace, Inline: []byte("hello")}
		if _, err := h.Call(context.Background(), ipc.OpFile, op, &result); err != nil {
			t.Fatal(err)
		}
		if got := b.sh("a", "cat sub/x; stat -c ' %u %a' sub/x"); got != fmt.Sprintf("hello %d 644", facts.UID) {
			t.Errorf("%q", got)
		}
		for path, want := range map[string]string{"/etc/shadow": "", "/proc/1/mem": "", "/etc/hermes-new": "w"} {
			op := ipc.FileOp{Method: "file.read", Params: []byte(`{"path":"` + path + `"}`), Small: true}
			if want == "w" {
				op = ipc.FileOp{Method: "file.write", Params: []byte(`{"path":"` + path + `"}`), Inline: []byte("x")}
			}
			if _, err := h.Call(context.Background(), ipc.OpFile, op, &result); err == nil {
				t.Errorf("%s worked", path)
				os.Remove("/etc/hermes-new")
			}
		}
		var spilled ipc.SpillResult
		fds, err := h.Call(context.Background(), ipc.OpSpill, ipc.Spill{Name: "out-1"}, &spilled)
		if err != nil || len(fds) != 1 {
			t.Fatal(err)
		}
		f := os.NewFile(uintptr(fds[0]), "spill")
		defer f.Close()
		if _, err := f.WriteString("spilled"); err != nil {
			t.Fatal(err)
		}
		if got := b.sh("a", "cat "+string(spilled.Path)+"; stat -c ' %u %a' "+string(spilled.Path)); got != fmt.Sprintf("spilled %d 600", facts.UID) {
			t.Errorf("%q", got)
		}
		b.sh("a", "ln -s /etc/passwd $TMPDIR/out-2")
		if _, err := h.Call(context.Background(), ipc.OpSpill, ipc.Spill{Name: "out-2"}, &spilled); err == nil {
			t.Error("a spill went through a link")
		}
	})
}

func TestLevelsAndFloors(t *testing.T) {
	b := newSandbox(t, probed())
	f := probed()
	f.Method, f.Switch, f.Highest = isolation.MethodNone, false, isolation.None
	f.Reasons = map[string]string{isolation.Namespaces: "refused for this test", isolation.UID: "refused too"}
	low := newSandbox(t, f)
	for name, c := range map[string]struct {
		b    *sandbox
		p    CreateParams
		want string
	}{
		"sandbox on a host": {b, CreateParams{Slot: "x", Level: "exclusive", PrivateRoot: true}, "isolation "},
		"below the floor":   {low, CreateParams{Slot: "x", Level: "auto", Floor: "uid"}, "isolation "},
		"not available":     {low, CreateParams{Slot: "x", Level: "namespaces"}, "isolation "},
		"unknown level":     {b, CreateParams{Slot: "x", Level: "best"}, "bad_request "},
		"bad id":            {b, CreateParams{Slot: "../x"}, "bad_request "},
		"disk limit": {b, CreateParams{Slot: "x", Level: "none", PrivateRoot: true,
			Limits: ipc.Limits{DiskMB: ptr[int64](5)}}, "limit "},
	} {
		_, err := c.b.Create(context.Background(), c.p)
		if err == nil || kind(err) != c.want {
			t.Errorf("%s: %v", name, err)
		}
		if err != nil && strings.HasPrefix(name, "below") && !strings.Contains(err.Error(), "refused for this test") {
			t.Errorf("%s gives no reasons: %v", name, err)
		}
	}
	if _, err := b.Agent(context.Background(), "x"); err == nil || kind(err) != "no_slot " {
		t.Error(err)
	}
	if os.Geteuid() == 0 {
		if _, err := low.Create(context.Background(), CreateParams{Slot: "y", PrivateRoot: true}); err == nil {
			t.Error("root stayed root on a host")
		}
	}
}

func ptr[T any](v T) *T { return &v }

func TestWipeIsConfinedAndThorough(t *testing.T) {
	outside := t.TempDir()
	if err := os.WriteFile(outside+"/kept", []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	root := t.TempDir()
	tree := root + "/tree"
	deep := tree
	for range 40 {
		deep += "/d"
	}
	script := fmt.Sprintf(`mkdir -p %[1]s && cd %[1]s && i=0; while [ $i -lt 600 ]; do mkdir d && cd d || exit 1; i=$((i+1)); done; : > end
ln -s %[2]s %[3]s/link; mkdir %[3]s/shut; ln %[2]s/kept %[3]s/shut/hard; chmod 0 %[3]s/shut; mkfifo %[3]s/p`, deep, outside, tree)
	if out, err := exec.Command("/bin/sh", "-c", script).CombinedOutput(); err != nil {
		t.Fatal(err, string(out))
	}
	if problems := wipe.RemoveTree(tree); len(problems) > 0 {
		t.Error(problems)
	}
	if left, _ := os.ReadDir(root); len(left) != 0 {
		t.Errorf("left: %v", left)
	}
	if _, err := os.Stat(outside + "/kept"); err != nil {
		t.Error(err)
	}
}

// Commands are forked on several threads, whose scopes must not keep them apart.
func TestCommandsOfOneSlotReachEachOther(t *testing.T) {
	eachLevel(t, func(t *testing.T, b *sandbox, _ SlotFacts) {
		var victims [6]command
		var wg sync.WaitGroup
		for i := range victims {
			wg.Go(func() {
				var err error
				if victims[i], err = b.spawn("a", nil, "sleep", "1000"); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		for _, v := range victims {
			wg.Go(func() {
				if out, e := b.run("a", "/bin/sh", "-c",
					fmt.Sprintf("kill -TERM %d 2>&1", v.spawned.PID)); e.ExitCode != 0 {
					t.Error(out)
				}
			})
		}
		wg.Wait()
		for _, v := range victims {
			if e := <-v.exit; e.Signal != int(syscall.SIGTERM) {
				t.Errorf("%+v", e)
			}
		}
	})
}
