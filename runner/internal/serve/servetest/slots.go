// Package servetest gives the tests of serve slots without isolation: real
// processes, files and links, forked plainly by this program.
package servetest

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"hermes-exec/runner/internal/files"
	"hermes-exec/runner/internal/link"
	"hermes-exec/runner/internal/serve"
)

// Slots implements serve.Slots.
type Slots struct {
	base    string
	onExit  func(string, link.Exit)
	onDeath func(string, string)

	mu    sync.Mutex
	slots map[string]*slot
}

// New keeps slots below base.
func New(base string) *Slots { return &Slots{base: base, slots: map[string]*slot{}} }

type slot struct {
	id, root string
	agent    *serve.Agent
	far      *link.Conn

	mu       sync.Mutex
	commands map[uint64]int // token → pid
}

// OnExit implements serve.Slots.
func (s *Slots) OnExit(f func(string, link.Exit)) { s.onExit = f }

// OnDeath implements serve.Slots.
func (s *Slots) OnDeath(f func(string, string)) { s.onDeath = f }

// Die makes a slot's agent vanish.
func (s *Slots) Die(id string) {
	s.mu.Lock()
	x := s.slots[id]
	delete(s.slots, id)
	s.mu.Unlock()
	x.far.Close()
	s.onDeath(id, "the slot's init was killed")
}

// Create implements serve.Slots.
func (s *Slots) Create(_ context.Context, params json.RawMessage) (any, error) {
	var p struct {
		Slot string                `json:"slot"`
		Env  map[string]link.Bytes `json:"env"`
	}
	if err := json.Unmarshal(params, &p); err != nil {
		return nil, &link.Error{Kind: "bad_request", Message: err.Error()}
	}
	x := &slot{id: p.Slot, root: filepath.Join(s.base, "slots", p.Slot)}
	for _, dir := range []string{"workspace", "home", "tmp"} {
		if err := os.MkdirAll(filepath.Join(x.root, dir), 0o700); err != nil {
			return nil, err
		}
	}
	x.agent = &serve.Agent{Workspace: filepath.Join(x.root, "workspace"), Shells: map[string]string{}}
	for _, name := range []string{"bash", "sh", "dash", "busybox"} {
		if path, err := exec.LookPath(name); err == nil {
			x.agent.Shells[name] = path
			if x.agent.Shell == "" {
				x.agent.Shell = path
			}
		}
	}
	x.agent.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + filepath.Join(x.root, "home"), "TMPDIR=" + filepath.Join(x.root, "tmp"), "LANG=C.UTF-8"}
	for name, value := range p.Env {
		x.agent.Env = append(x.agent.Env, name+"="+string(value))
	}
	if err := s.start(x); err != nil {
		return nil, err
	}
	s.mu.Lock()
	s.slots[p.Slot] = x
	s.mu.Unlock()
	return map[string]any{
		"workspace": x.agent.Workspace, "home": filepath.Join(x.root, "home"), "tmp": filepath.Join(x.root, "tmp"), "uid": os.Getuid(), "gid": os.Getgid(),
		"user_name": "tester", "shell": x.agent.Shell, "shells": x.agent.Shells,
		"isolation": link.Isolation{Level: "none", Limits: map[string]string{}},
	}, nil
}

func (s *Slots) start(x *slot) error {
	x.commands = map[uint64]int{}
	near, far, err := link.Pair()
	if err != nil {
		return err
	}
	conn, err := link.New(near)
	if err != nil {
		return err
	}
	x.agent.Call = conn.Call
	if x.far, err = link.New(far); err != nil {
		return err
	}
	go func() { _ = x.far.Run(x.handle, nil) }()
	go func() {
		_ = conn.Run(nil, func(op string, body json.RawMessage) {
			var e link.Exit
			if err := json.Unmarshal(body, &e); err == nil && op == link.EventExit {
				s.onExit(x.id, e)
			}
		})
	}()
	return nil
}

// Agent implements serve.Slots.
func (s *Slots) Agent(_ context.Context, id string) (*serve.Agent, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if x := s.slots[id]; x != nil {
		return x.agent, nil
	}
	return nil, &link.Error{Kind: "no_slot", Message: "no slot " + id}
}

// Reset implements serve.Slots.
func (s *Slots) Reset(ctx context.Context, id string) (any, error) {
	receipt, err := s.Destroy(ctx, id)
	if err != nil {
		return nil, err
	}
	params, err := json.Marshal(map[string]string{"slot": id})
	if err != nil {
		return nil, err
	}
	if _, err := s.Create(ctx, params); err != nil {
		return nil, err
	}
	return map[string]any{"clean": true, "killed": receipt, "differences": []string{}}, nil
}

// Destroy implements serve.Slots.
func (s *Slots) Destroy(ctx context.Context, id string) (link.Receipt, error) {
	receipt, err := s.KillAll(ctx, id)
	if err != nil {
		return receipt, err
	}
	s.mu.Lock()
	x := s.slots[id]
	delete(s.slots, id)
	s.mu.Unlock()
	x.far.Close()
	return receipt, os.RemoveAll(x.root)
}

// KillAll implements serve.Slots.
func (s *Slots) KillAll(_ context.Context, id string) (link.Receipt, error) {
	s.mu.Lock()
	x := s.slots[id]
	s.mu.Unlock()
	if x == nil {
		return link.Receipt{}, &link.Error{Kind: "no_slot", Message: "no slot " + id}
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	receipt := link.Receipt{Handles: []string{"group"}, Rounds: 1}
	for _, pid := range x.commands {
		receipt.Found++
		if syscall.Kill(-pid, syscall.SIGKILL) == nil {
			receipt.Killed++
		}
	}
	return receipt, nil
}

// Close implements serve.Slots.
func (s *Slots) Close(ctx context.Context) link.Receipt {
	var receipt link.Receipt
	s.mu.Lock()
	ids := make([]string, 0, len(s.slots))
	for id := range s.slots {
		ids = append(ids, id)
	}
	s.mu.Unlock()
	for _, id := range ids {
		if r, err := s.Destroy(ctx, id); err == nil {
			receipt.Add(r)
		}
	}
	return receipt
}

func (x *slot) handle(op string, m *link.Message) (any, []int, error) {
	switch op {
	case link.OpSpawn:
		var p link.Spawn
		if err := json.Unmarshal(m.Body, &p); err != nil {
			return nil, nil, err
		}
		defer m.CloseFDs()
		result, fds, err := x.spawn(p, m.FDs)
		return result, fds, err
	case link.OpKill:
		var p link.Kill
		if err := json.Unmarshal(m.Body, &p); err != nil {
			return nil, nil, err
		}
		return x.kill(p), nil, nil
	case link.OpSignal:
		var p link.Signal
		if err := json.Unmarshal(m.Body, &p); err != nil {
			return nil, nil, err
		}
		x.mu.Lock()
		pid := x.commands[p.Token]
		x.mu.Unlock()
		if pid == 0 {
			return nil, nil, syscall.ESRCH
		}
		return struct{}{}, nil, syscall.Kill(-pid, syscall.Signal(p.Number))
	case link.OpProcesses:
		list := link.Processes{}
		x.mu.Lock()
		defer x.mu.Unlock()
		for token, pid := range x.commands {
			list.Processes = append(list.Processes, link.Process{PID: pid, Token: token, State: "S"})
		}
		return list, nil, nil
	case link.OpSpill:
		var p link.Spill
		if err := json.Unmarshal(m.Body, &p); err != nil {
			return nil, nil, err
		}
		path := filepath.Join(x.root, "tmp", p.Name)
		fd, err := syscall.Open(path, syscall.O_CREAT|syscall.O_EXCL|syscall.O_RDWR|syscall.O_CLOEXEC, 0o600)
		if err != nil {
			return nil, nil, err
		}
		return link.Spilled{Path: link.Bytes(path)}, []int{fd}, nil
	case link.OpFile:
		var p link.FileOp
		if err := json.Unmarshal(m.Body, &p); err != nil {
			return nil, nil, err
		}
		var data *os.File
		if len(m.FDs) == 1 {
			data = os.NewFile(uintptr(m.FDs[0]), "data")
			m.FDs = nil
		}
		result, err := files.Do(files.Env{Workspace: x.agent.Workspace}, p, data)
		return result, nil, err
	}
	m.CloseFDs()
	return nil, nil, fmt.Errorf("%s is not there in tests", op)
}

func (x *slot) spawn(p link.Spawn, fds []int) (any, []int, error) {
	if info, err := os.Stat(string(p.Cwd)); err != nil || !info.IsDir() {
		return nil, nil, &link.Error{Kind: "os", Errno: "ENOENT", Message: "no such directory", Path: string(p.Cwd)}
	}
	var env []string
	path := ""
	for _, e := range p.Env {
		env = append(env, string(e))
		if v, ok := strings.CutPrefix(string(e), "PATH="); ok {
			path = v
		}
	}
	program := find(string(p.Argv[0]), path)
	if program == "" {
		return link.Spawned{ExitCode: 127, Reason: string(p.Argv[0]) + ": not found"}, nil, nil
	}
	argv := make([]string, len(p.Argv))
	for i, a := range p.Argv {
		argv[i] = string(a)
	}
	attr := &syscall.SysProcAttr{Setsid: true}
	var master int
	var out []int
	if p.PTY != nil {
		var slave *os.File
		var err error
		if master, slave, err = openPTY(p.PTY); err != nil {
			return nil, nil, err
		}
		defer slave.Close()
		fds = append([]int{int(slave.Fd()), int(slave.Fd()), int(slave.Fd())}, fds...)
		attr.Setctty = true
		out = []int{master}
	}
	files := make([]uintptr, len(fds))
	for i, fd := range fds {
		files[i] = uintptr(fd)
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	pid, err := syscall.ForkExec(program, argv, &syscall.ProcAttr{Dir: string(p.Cwd), Env: env, Files: files, Sys: attr})
	if err != nil {
		for _, fd := range out {
			_ = syscall.Close(fd)
		}
		return link.Spawned{ExitCode: 126, Reason: fmt.Sprintf("%s: %v", program, err)}, nil, nil
	}
	x.commands[p.Token] = pid
	result := spawned{Spawned: link.Spawned{Started: true, PID: pid}, sent: make(chan struct{})}
	go x.wait(p.Token, pid, result.sent)
	return result, out, nil
}

// spawned tells when it was sent: an exit may be told only after that.
type spawned struct {
	link.Spawned
	sent chan struct{}
}

// Replied implements link.Replied.
func (s spawned) Replied() { close(s.sent) }

func (x *slot) wait(token uint64, pid int, replied <-chan struct{}) {
	var status syscall.WaitStatus
	var usage syscall.Rusage
	for {
		if _, err := syscall.Wait4(pid, &status, 0, &usage); err != syscall.EINTR {
			break
		}
	}
	<-replied
	x.mu.Lock()
	delete(x.commands, token)
	x.mu.Unlock()
	e := link.Exit{Token: token, ExitCode: status.ExitStatus(), MaxRSS: int64(usage.Maxrss) * 1024, UserS: float64(usage.Utime.Sec) + float64(usage.Utime.Usec)/1e6}
	if status.Signaled() {
		e.Signal = int(status.Signal())
		e.ExitCode = 128 + e.Signal
	}
	_ = x.far.Event(link.EventExit, e)
}

func (x *slot) kill(p link.Kill) link.Receipt {
	x.mu.Lock()
	pid := x.commands[p.Token]
	x.mu.Unlock()
	receipt := link.Receipt{Rounds: 1, Handles: []string{"group"}}
	if pid == 0 {
		return receipt
	}
	receipt.Found = 1
	_ = syscall.Kill(-pid, syscall.SIGTERM)
	deadline := time.Now().Add(time.Duration(p.GraceS * float64(time.Second)))
	for syscall.Kill(-pid, 0) == nil && time.Now().Before(deadline) {
		time.Sleep(5 * time.Millisecond)
	}
	_ = syscall.Kill(-pid, syscall.SIGKILL)
	receipt.Killed = 1
	return receipt
}

func find(name, path string) string {
	if strings.Contains(name, "/") {
		if _, err := os.Stat(name); err != nil {
			return ""
		}
		return name
	}
	for _, dir := range filepath.SplitList(path) {
		if info, err := os.Stat(filepath.Join(dir, name)); err == nil && info.Mode()&0o111 != 0 && !info.IsDir() {
			return filepath.Join(dir, name)
		}
	}
	return ""
}
