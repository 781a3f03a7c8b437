package command

import (
	"math"
	"strings"
	"time"

	"hermes-exec/runner/internal/budget"
	"hermes-exec/runner/internal/channel"
	"hermes-exec/runner/internal/ipc"
	"hermes-exec/runner/internal/link"
)

const (
	// DefaultOutputLimit is how much of an output is kept, in bytes.
	DefaultOutputLimit = 1 << 20
	// maxShortScript is the longest script that is passed as an argument.
	maxShortScript = 64 << 10
	// maxShownCommand is how much of its command a process shows.
	maxShownCommand = 4 << 10
)

// Params are the params that exec.run and proc.spawn share.
type Params struct {
	Slot        string               `json:"slot"`
	Shell       *ipc.Bytes           `json:"shell"`
	Argv        []ipc.Bytes          `json:"argv"`
	Cwd         *ipc.Bytes           `json:"cwd"`
	Env         map[string]ipc.Bytes `json:"env"`
	User        string               `json:"user"`
	Stdin       bool                 `json:"stdin"`
	TimeoutS    *float64             `json:"timeout_s"`
	OutputLimit *int64               `json:"output_limit_bytes"`
	MergeStderr bool                 `json:"merge_stderr"`
	Stream      bool                 `json:"stream"`
	Session     string               `json:"session"`
	Peek        bool                 `json:"peek"`
	PTY         *ipc.PTY             `json:"pty"`
	Tag         *string              `json:"tag"`
}

// Check refuses params that contradict each other or are out of range.
func (p *Params) Check(memory *budget.Budget) error {
	switch {
	case p.Shell == nil && len(p.Argv) == 0:
		return channel.BadRequest("neither shell nor argv is given")
	case p.Shell != nil && len(p.Argv) > 0:
		return channel.BadRequest("both shell and argv are given")
	case p.Session != "" && p.Shell == nil:
		return channel.BadRequest("a session takes shell text, not argv")
	case p.Peek && p.Session == "":
		return channel.BadRequest("peek needs a session")
	case len(p.Argv) > 0 && p.Argv[0] == "":
		return channel.BadRequest("argv[0] is empty")
	case p.Cwd != nil && *p.Cwd == "":
		return channel.BadRequest("cwd is empty")
	case p.OutputLimit != nil && (*p.OutputLimit < 0 || *p.OutputLimit > memory.MostOutput()):
		return channel.BadRequest("output_limit_bytes %d is not in 0 … %d, of a runner that has %d MiB of memory",
			*p.OutputLimit, memory.MostOutput(), memory.Limit()>>20)
	case p.PTY != nil && (p.PTY.Rows == 0 || p.PTY.Cols == 0):
		return channel.BadRequest("a terminal has at least one row and one column")
	}
	if err := CheckTimeout(p.TimeoutS); err != nil {
		return err
	}
	return CheckEnv(p.Env)
}

// CheckTimeout refuses an invalid time; nil is no limit.
func CheckTimeout(seconds *float64) error {
	if seconds != nil && (math.IsNaN(*seconds) || *seconds <= 0 || *seconds > 1e9) {
		return channel.BadRequest("timeout_s %v is out of range", *seconds)
	}
	return nil
}

// CheckEnv refuses names that no variable can have.
func CheckEnv(env map[string]ipc.Bytes) error {
	for name := range env {
		if name == "" || strings.ContainsAny(name, "=\x00") {
			return channel.BadRequest("%q is no name for an environment variable", name)
		}
	}
	return nil
}

// Text returns the command for display, cut where it is very long.
func (p *Params) Text() ipc.Bytes {
	var text strings.Builder
	if p.Shell != nil {
		text.WriteString(string((*p.Shell)[:min(len(*p.Shell), maxShownCommand+1)]))
	}
	for i, argument := range p.Argv {
		if i > 0 {
			text.WriteByte(' ')
		}
		text.WriteString(string(argument[:min(len(argument), maxShownCommand+1)]))
		if text.Len() > maxShownCommand {
			break
		}
	}
	if text.Len() > maxShownCommand {
		return ipc.Bytes(text.String()[:maxShownCommand] + " …")
	}
	return ipc.Bytes(text.String())
}

// Limit returns how much of each output is kept, in bytes.
func (p *Params) Limit() int {
	if p.OutputLimit == nil {
		return DefaultOutputLimit
	}
	return int(*p.OutputLimit)
}

// StartTimer returns the channel of a timer that fires at the timeout, and its Stop. Without a
// timeout the channel is nil.
func StartTimer(seconds *float64) (<-chan time.Time, func() bool) {
	if seconds == nil {
		return nil, func() bool { return true }
	}
	timer := time.NewTimer(time.Duration(*seconds * float64(time.Second)))
	return timer.C, timer.Stop
}

// Environment returns the slot's variables with the call's variables over them.
func Environment(base []string, call map[string]ipc.Bytes) []ipc.Bytes {
	env := make([]ipc.Bytes, 0, len(base)+len(call))
	for _, entry := range base {
		name, _, _ := strings.Cut(entry, "=")
		if _, replaced := call[name]; !replaced {
			env = append(env, ipc.Bytes(entry))
		}
	}
	for name, value := range call {
		env = append(env, ipc.Bytes(name)+"="+value)
	}
	return env
}

// Directory makes a cwd absolute. It does not clean the path: the kernel resolves ".." after a
// symbolic link.
func Directory(agent *link.Agent, cwd *ipc.Bytes) string {
	switch {
	case cwd == nil:
		return agent.Workdir()
	case strings.HasPrefix(string(*cwd), "/"):
		return string(*cwd)
	}
	return strings.TrimSuffix(agent.Workdir(), "/") + "/" + string(*cwd)
}
