package ipc

import "hermes-exec/runner/internal/wire"

// Operations of an agent. The serving runner sends requests, the agent replies; `exit` is the only
// event.
const (
	// Spawn → Spawned; fds in: stdin, stdout, stderr (merged: stdout twice), then Extra; fds out: pty master
	OpSpawn        = "spawn"
	OpKill         = "kill"      // Kill → Receipt
	OpSignal       = "signal"    // Signal → struct{}
	OpKillAll      = "kill_all"  // struct{} → Receipt; ends every process of the slot except the agent
	OpPause        = "pause"     // struct{} → struct{}; stops every process of the slot until OpResume
	OpResume       = "resume"    // struct{} → struct{}
	OpProcesses    = "processes" // struct{} → Processes
	OpTransient    = "transient" // struct{} → Transient
	OpRemovedFiles = "held"      // struct{} → diskspace.Usage; removed files that processes of the slot have open
	OpConnect      = "connect"   // Connect → struct{}; fds out: the connected socket
	OpListen       = "listen"    // Listen → struct{}; fds out: the listening socket
	OpListenTCP    = "listenTCP" // ListenTCP → struct{}; fds out: the listening socket
	OpFile         = "file"      // FileOp → its result; fds in: the end of a pipe if the method moves data
	OpSpill        = "spill"     // Spill → Spilled; fds out: the open file

	EventExit = "exit" // Exit
)

// RequestVariable names the environment variable that holds the request of a process.
const RequestVariable = "HERMES_EXEC_REQUEST"

// Bytes is the type of every path and argument.
type Bytes = wire.Bytes

// Limits are the limits of a slot; nil means no limit.
type Limits struct {
	CPUs       *float64 `json:"cpus,omitempty"`
	MemoryMB   *int64   `json:"memory_mb,omitempty"`
	PIDs       *int64   `json:"pids,omitempty"`
	DiskMB     *int64   `json:"disk_mb,omitempty"`
	OpenFiles  *int64   `json:"open_files,omitempty"`
	FileSizeMB *int64   `json:"file_size_mb,omitempty"`
	CPUTimeS   *float64 `json:"cpu_time_s,omitempty"`
}

// Isolation describes the probed isolation of a slot, in short plain statements.
type Isolation struct {
	Level      string            `json:"level"`
	Filesystem string            `json:"filesystem"`
	Processes  string            `json:"processes"`
	Users      string            `json:"users"`
	Network    string            `json:"network"`
	Limits     map[string]string `json:"limits"`
	PriceMS    float64           `json:"price_ms"`
}

// Receipt reports how many processes a kill found and left. If a process is left, the slot cannot
// be proven clean.
type Receipt struct {
	Found     int      `json:"found"`
	Killed    int      `json:"killed"`
	Left      int      `json:"left"`
	Rounds    int      `json:"rounds"`
	Handles   []string `json:"handles"`
	DurationS float64  `json:"duration_s"`
}

// Add merges another receipt of the same sweep into r.
func (r *Receipt) Add(o Receipt) {
	r.Found += o.Found
	r.Killed += o.Killed
	r.Left += o.Left
	r.Rounds += o.Rounds
	r.DurationS += o.DurationS
next:
	for _, h := range o.Handles {
		for _, have := range r.Handles {
			if have == h {
				continue next
			}
		}
		r.Handles = append(r.Handles, h)
	}
}

// Spawn starts one process. Token is the caller's name for it (the request id), unique for the life
// of the agent. Env is complete (KEY=VALUE): nothing is inherited. A relative Argv[0] without a
// slash is looked up in Env's PATH. With PTY the agent opens a terminal in the slot, makes it the
// controlling terminal, uses it for 0, 1 and 2 and returns its master. Extra descriptors become 3,
// 4, … in the child. The first Base entries of Env are the slot's: HOME, USER and LOGNAME among them
// become those of another User. The agent may hold the reply for at most HoldMS milliseconds while the process
// runs: most commands end so soon, and their exit travels with the reply.
type Spawn struct {
	Token uint64  `json:"token"`
	Argv  []Bytes `json:"argv"`
	Env   []Bytes `json:"env"`
	Base  int     `json:"base,omitempty"`
	Cwd   Bytes   `json:"cwd"`
	User  string  `json:"user,omitempty"`
	PTY   *PTY    `json:"pty,omitempty"`

	HoldMS int `json:"hold_ms,omitempty"`
}

// PTY is the size of a terminal.
type PTY struct {
	Rows uint16 `json:"rows"`
	Cols uint16 `json:"cols"`
}

// SpawnResult is the answer to Spawn. If the program could not be executed, Started is false,
// ExitCode 126 or 127 and Reason the text for stderr, and no Exit event follows. A missing or
// invalid cwd is an Error instead. With Exit the process has ended, and no event follows. RanS is
// how long it has run.
type SpawnResult struct {
	Started  bool    `json:"started"`
	PID      int     `json:"pid"`
	ExitCode int     `json:"exit_code,omitempty"`
	Reason   string  `json:"reason,omitempty"`
	Exit     *Exit   `json:"exit,omitempty"`
	RanS     float64 `json:"ran_s,omitempty"`
}

// Exit reports the end of a spawned process, not of its descendants. It comes with the SpawnResult
// or after it. Cwd is its working directory when it was killed, otherwise empty.
type Exit struct {
	Token     uint64  `json:"token"`
	ExitCode  int     `json:"exit_code"` // 128+signal for a signalled process
	Signal    int     `json:"signal,omitempty"`
	OOMKilled bool    `json:"oom_killed,omitempty"`
	UserS     float64 `json:"user_s"`
	SystemS   float64 `json:"system_s"`
	MaxRSS    int64   `json:"max_rss_bytes"`
	Cwd       Bytes   `json:"cwd,omitempty"`
}

// Kill ends the whole tree of a command: TERM, GraceS, KILL, then sweeps until two passes find
// nothing. It also works after the command's leader has ended. The reply comes when nothing is
// left, or after at most 4 s with Left > 0.
//
// With Since it ends only processes that have started at that time or later, in clock ticks after
// boot. The command itself goes on.
type Kill struct {
	Token  uint64  `json:"token"`
	GraceS float64 `json:"grace_s"`
	Since  uint64  `json:"since,omitempty"`
}

// Signal sends a signal to the process group of a command's leader.
type Signal struct {
	Token  uint64 `json:"token"`
	Number int    `json:"number"`
}

// Process is one living process of the slot. Token 0 means that it is not attributed to a command.
type Process struct {
	PID       int     `json:"pid"`
	Argv      []Bytes `json:"argv"`
	StartedAt float64 `json:"started_at"`
	RSS       int64   `json:"rss_bytes"`
	Token     uint64  `json:"token"`
	State     string  `json:"state"`
}

// Processes is the answer to OpProcesses.
type Processes struct {
	Processes []Process `json:"processes"`
}

// Transient is the state of a slot that no file system on a disk holds.
type Transient struct {
	Processes []Process `json:"processes"`
	// Memory are the file systems in memory of which the slot has files, and message queues.
	Memory []Bytes `json:"memory,omitempty"`
	// Objects is how many System V objects the slot has.
	Objects int `json:"objects,omitempty"`
}

// Connect opens a TCP connection from inside the slot's network. It retries a refused connection
// for WaitS.
type Connect struct {
	Host     string  `json:"host"`
	Port     int     `json:"port"`
	TimeoutS float64 `json:"timeout_s"`
	WaitS    float64 `json:"wait_s"`
}

// Listen makes a UNIX socket at an absolute path of the slot's view, with the slot's rights and for
// its user alone.
type Listen struct {
	Path Bytes `json:"path"`
}

// ListenTCP makes a TCP socket in the slot's network. Port 0 takes a free one.
type ListenTCP struct {
	Host string `json:"host"` // an IP address
	Port int    `json:"port"`
}

// Spill opens a new file for the whole output of a command, owned by the slot.
type Spill struct {
	Name string `json:"name"`
}

// SpillResult is the path of the file in the slot's view.
type SpillResult struct {
	Path Bytes `json:"path"`
}
