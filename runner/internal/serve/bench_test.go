package serve_test

import (
	"context"
	"os"
	"os/exec"
	"testing"

	"hermes-exec/runner/internal/initproc"
	"hermes-exec/runner/internal/ipc"
	"hermes-exec/runner/internal/slots"
	"hermes-exec/runner/internal/testdriver"
)

// BenchmarkForkExec is the floor: the cost of a process without the runner.
func BenchmarkForkExec(b *testing.B) {
	for b.Loop() {
		cmd := exec.Command("/bin/true")
		_, err := initproc.Own(func() (int, error) {
			if err := cmd.Start(); err != nil {
				return 0, err
			}
			return cmd.Process.Pid, nil
		})
		if err != nil {
			b.Fatal(err)
		}
		err = cmd.Wait()
		initproc.Disown(cmd.Process.Pid)
		if err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkAgent is the floor of serve: a slot's agent asked directly.
func BenchmarkAgent(b *testing.B) {
	base := testdriver.PassableDir(b)
	m, err := slots.NewManager(base, testdriver.Probe(), os.Args[0])
	if err != nil {
		b.Fatal(err)
	}
	defer m.Close(context.Background())
	exits := make(chan ipc.Exit, 1)
	m.OnExit(func(_ string, e ipc.Exit) { exits <- e })
	facts, err := m.Create(context.Background(),
		slots.CreateParams{Slot: "s", Level: "auto", Floor: "none", Network: true})
	if err != nil {
		b.Fatal(err)
	}
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		b.Fatal(err)
	}
	defer null.Close()
	token := uint64(0)
	for b.Loop() {
		h, err := m.Agent(context.Background(), "s")
		if err != nil {
			b.Fatal(err)
		}
		token++
		fd := int(null.Fd())
		spawn := ipc.Spawn{Token: token, Argv: []ipc.Bytes{"/bin/true"}, Env: []ipc.Bytes{"PATH=/bin"},
			Cwd: facts.Workspace}
		if _, err := h.Call(context.Background(), ipc.OpSpawn, spawn, nil, fd, fd, fd); err != nil {
			b.Fatal(err)
		}
		<-exits
	}
}

func BenchmarkRun(b *testing.B) {
	_, d := testdriver.Open(b)
	d.Slot("s")
	p := testdriver.Params{"slot": "s", "argv": []string{"/bin/true"}, "stdin": false, "output_limit_bytes": 1 << 20,
		"env": testdriver.Params{}}
	d.Call("exec.run", p, nil)
	for b.Loop() {
		d.Call("exec.run", p, nil)
	}
}

func BenchmarkShellRun(b *testing.B) {
	_, d := testdriver.Open(b)
	d.Slot("s")
	for b.Loop() {
		d.Call("exec.run", testdriver.Shell("s", "echo hello"), nil)
	}
}

func BenchmarkSessionRun(b *testing.B) {
	_, d := testdriver.Open(b)
	d.Slot("s")
	var s struct{ Session string }
	d.Call("session.open", testdriver.Params{"slot": "s"}, &s)
	p := testdriver.Shell("s", "echo hello")
	p["session"] = s.Session
	for b.Loop() {
		d.Call("exec.run", p, nil)
	}
}

func BenchmarkFileRead(b *testing.B) {
	_, d := testdriver.Open(b)
	d.Slot("s")
	d.Sh("s", "head -c 1024 /dev/zero > f")
	for b.Loop() {
		d.Call("file.read", testdriver.Params{"slot": "s", "path": "f", "offset": 0}, nil)
	}
}

func BenchmarkStream(b *testing.B) {
	_, d := testdriver.Open(b)
	d.Slot("s")
	const size = 32 << 20
	b.SetBytes(size)
	for b.Loop() {
		p := testdriver.Shell("s", "head -c 33554432 /dev/zero")
		p["stream"], p["output_limit_bytes"] = true, 0
		d.Call("exec.run", p, nil)
	}
}
