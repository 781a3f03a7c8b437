package isolation

import "hermes-exec/runner/internal/cgroup"

// Isolation levels, lowest first.
const (
	None       = "none"
	Landlock   = "landlock"
	UID        = "uid"
	Namespaces = "namespaces"
	Exclusive  = "exclusive"
)

var levelOrder = map[string]int{None: 0, Landlock: 1, UID: 2, Namespaces: 3, Exclusive: 4}

// IsLevel reports whether name is a level.
func IsLevel(name string) bool { _, ok := levelOrder[name]; return ok }

// IsBelow reports whether level a is lower than level b.
func IsBelow(a, b string) bool { return levelOrder[a] < levelOrder[b] }

// Method is how namespaces are made here.
type Method string

// Methods, best first.
const (
	MethodNone     Method = ""
	MethodDirect   Method = "direct"   // this process may make them (CAP_SYS_ADMIN)
	MethodIdentity Method = "identity" // root without CAP_SYS_ADMIN: a user namespace with unchanged ids
	MethodSelf     Method = "self"     // an ordinary user, or root without other ids: a user namespace of its own uid
	MethodBwrap    Method = "bubblewrap"
)

// Facts are the results of the trials in a sandbox (READY.isolation of docs/protocol.md).
type Facts struct {
	Highest       string            `json:"highest"`
	Reasons       map[string]string `json:"reasons"`
	LandlockABI   int               `json:"landlock_abi"`
	UserNamespace bool              `json:"user_namespace"`
	Cgroup        string            `json:"cgroup"`
	Bubblewrap    bool              `json:"bubblewrap"`

	Method    Method         `json:"-"`
	BwrapPath string         `json:"-"`
	Loopback  bool           `json:"-"` // a network namespace can have its loopback interface
	Root      bool           `json:"-"` // this process has uid 0
	Switch    bool           `json:"-"` // it may become other uids and gids
	Confine   bool           `json:"-"` // Landlock confines the files of a program
	Setgroups bool           `json:"-"` // it may set additional groups
	IDs       IDRange        `json:"-"` // the uids of this sandbox
	Cgroups   []cgroup.Group `json:"-"` // controllers in which the runner may make groups
	PriceMS   float64        `json:"-"` // the time to make one set of namespaces
	Caps      uint64         `json:"-"` // the runner's capabilities
}

// OneID reports whether this process is root of a user namespace in which no other ids exist.
func (f Facts) OneID() bool { return f.Root && f.IDs.Count == 1 }

// Has reports whether a level is available.
func (f Facts) Has(level string) bool {
	switch level {
	case Exclusive, None:
		return true
	case Landlock:
		return f.Confine
	case UID:
		return f.Switch
	case Namespaces:
		return f.Method != MethodNone
	}
	return false
}

// IDRange is a run of user and group ids.
type IDRange struct{ First, Count uint32 }

// Domain is a restriction by Landlock that programs cannot leave.
type Domain struct {
	Scoped bool   `json:"scoped"`          // abstract sockets and signals stay within it
	Files  *Files `json:"files,omitempty"` // nil: all files are accessible
}

// Files are the paths that a confined program can use, with everything below them.
type Files struct {
	Read   []string `json:"read"`
	Device []string `json:"device"` // to read and write, not to create or remove
	Own    []string `json:"own"`
}
