// Package isolation knows what the kernel and the sandbox allow for keeping slots
// apart, and does it: namespaces, a private root, uids, Landlock, cgroups,
// rlimits. Everything is found out by trying; nothing is read out of what a
// program prints.
package isolation

import "hermes-exec/runner/internal/cgroup"

// Levels of the isolation ladder, lowest first.
const (
	None       = "none"
	UID        = "uid"
	Namespaces = "namespaces"
	Exclusive  = "exclusive"
)

var order = map[string]int{None: 0, UID: 1, Namespaces: 2, Exclusive: 3}

// Known says whether name is a level.
func Known(name string) bool { _, ok := order[name]; return ok }

// Below says whether level a is lower than level b.
func Below(a, b string) bool { return order[a] < order[b] }

// Way is how namespaces are made here.
type Way string

// Ways, best first.
const (
	WayNone     Way = ""
	WayDirect   Way = "direct"   // this process may make them (CAP_SYS_ADMIN)
	WayIdentity Way = "identity" // root without CAP_SYS_ADMIN: a user namespace in which every id keeps its number
	WaySelf     Way = "self"     // an ordinary user: a user namespace that holds its own uid
	WayBwrap    Way = "bubblewrap"
)

// Facts is what a sandbox allows, as tried (READY.isolation of docs/protocol.md).
type Facts struct {
	Highest       string            `json:"highest"`
	Reasons       map[string]string `json:"reasons"`
	LandlockABI   int               `json:"landlock_abi"`
	UserNamespace bool              `json:"user_namespace"`
	Cgroup        string            `json:"cgroup"`
	Bubblewrap    bool              `json:"bubblewrap"`

	Way       Way            `json:"-"`
	BwrapPath string         `json:"-"`
	Loopback  bool           `json:"-"` // a network of its own can have its loopback interface
	Root      bool           `json:"-"` // this process has uid 0
	Switch    bool           `json:"-"` // it may become other uids and gids
	Setgroups bool           `json:"-"` // it may set additional groups
	IDs       IDRange        `json:"-"` // the uids that exist in this sandbox
	Cgroups   []cgroup.Group `json:"-"` // controllers in which we may make groups
	PriceMS   float64        `json:"-"` // what one set of namespaces took to make
	Caps      uint64         `json:"-"` // the runner's capabilities
}

// Has says whether a level can be given.
func (f Facts) Has(level string) bool {
	switch level {
	case Exclusive, None:
		return true
	case UID:
		return f.Switch
	case Namespaces:
		return f.Way != WayNone
	}
	return false
}

// IDRange is a run of user and group ids.
type IDRange struct{ First, Count uint32 }
