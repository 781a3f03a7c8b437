package isolation

import (
	"hermes-exec/runner/internal/cgroup"
	"hermes-exec/runner/internal/ipc"
)

// Setup is what an agent needs to know; it is the first message on its link.
type Setup struct {
	Slot  string `json:"slot"`
	Boot  string `json:"boot"`
	Level string `json:"level"`

	UID      uint32   `json:"uid"`
	GID      uint32   `json:"gid"`
	Groups   []uint32 `json:"groups,omitempty"`
	UserName string   `json:"user_name"`
	Switch   bool     `json:"switch"` // the agent is root and leaves to UID for everything that it does for the slot
	Track    IDRange  `json:"track"`  // additional group ids that name commands; Count 0: none may be set

	SpawnLanes int `json:"spawn_lanes"` // how many of the descriptors that come along lead to threads that fork

	// Filter says that nothing else keeps a whole box from system calls.
	Filter bool `json:"filter,omitempty"`

	View      View          `json:"view"`
	Caps      []int         `json:"caps,omitempty"` // what root has in a slot with a root of its own
	Workspace string        `json:"workspace"`
	Home      string        `json:"home"`
	Tmp       string        `json:"tmp"`
	Limits    ipc.Limits    `json:"limits"`
	Cgroups   []cgroup.Join `json:"cgroups,omitempty"`
	// RLimits names the limits that have no cgroup and are held by rlimits.
	RLimits []string `json:"rlimits,omitempty"`
	// CountedAs is the user for whom the kernel counts what the slot takes, and
	// nobody else; 0: the runner's. NamespaceMost limits what a slot takes of that.
	CountedAs     uint32           `json:"counted_as,omitempty"`
	NamespaceMost map[string]int64 `json:"namespace_most,omitempty"`
	// Watch is the memory limit in bytes that a watchdog holds, 0 for none.
	Watch int64 `json:"watch,omitempty"`
	// ServePID is the serving runner, as this box numbers it.
	ServePID int `json:"serve_pid"`
	// Successor says that an agent of the slot has died before this one.
	Successor bool `json:"successor,omitempty"`
	// Since is the time (BootTicks) before which no tenant has started anything.
	Since uint64 `json:"since"`
}

// AsImage says that the slot has the image to itself, as its users.
func (s Setup) AsImage() bool { return s.Level == Box || s.OwnRoot() }

// OwnRoot says that the slot has a root of its own.
func (s Setup) OwnRoot() bool { return s.View.Kind == ViewOwn }

// View is the file system that a slot sees.
type View struct {
	Kind     string   `json:"kind"`    // "" shared with the box, "private", "box" or "own"
	Staging  string   `json:"staging"` // an empty directory of ours
	BaseDir  string   `json:"base_dir"`
	Binds    []Bind   `json:"binds"` // the slot's own directories
	ReadOnly []string `json:"read_only"`
	Passwd   string   `json:"passwd"`
	Group    string   `json:"group"`
	Hostname string   `json:"hostname"`
	Network  bool     `json:"network"` // shared with the box; false: only a loopback of its own
	Pids     bool     `json:"pids"`    // the agent is init of its own pid namespace
	Made     bool     `json:"made"`    // bubblewrap has made it all

	// Of "box", where the image may belong to the slots' own user: all of it is
	// read-only but for the slot's directories and the folders that slots share.
	ImageReadOnly bool     `json:"image_read_only,omitempty"`
	Shared        []string `json:"shared,omitempty"`

	// Of "own": what is below the slot's layers, an empty folder of ours for them
	// ("": none, the root is the box's), the slot's working directory with its
	// owner, and how many processes there may be (0: no limit).
	Image     *Image `json:"image,omitempty"`
	Layer     string `json:"layer,omitempty"`
	Workspace string `json:"workspace,omitempty"`
	Owner     User   `json:"owner,omitzero"`
	MostPIDs  int64  `json:"most_pids,omitempty"`
}

// Image is a box as slots with a root of their own see it.
type Image struct {
	Skeleton string        `json:"skeleton"`  // a folder of ours, for the root and folders that others are mounted on
	Folders  []string      `json:"folders"`   // folders of the box with a layer over each, parents first
	Memory   []MemoryMount `json:"memory"`    // file systems in memory, made afresh
	Shared   []string      `json:"shared"`    // what is mounted in the box and all slots write to
	ReadOnly []string      `json:"read_only"` // folders that are mounted in the box, and not writable
	Devices  []string      `json:"devices"`
	ShmSize  string        `json:"shm_size"` // of /dev/shm
}

// MemoryMount is a tmpfs.
type MemoryMount struct {
	Path    string `json:"path"`
	Flags   uint64 `json:"flags"`
	Options string `json:"options"`
}

// Bind shows Source, a directory of the box, at Target.
type Bind struct {
	Source string `json:"source"`
	Target string `json:"target"`

	ReadOnly bool `json:"read_only,omitempty"`
}

// Views.
const (
	ViewShared  = ""
	ViewPrivate = "private"
	ViewBox     = "box"
	ViewOwn     = "own"
)

// Operations of an agent besides those of the link package.
const (
	OpSetup = "setup" // Setup → Ready
	OpStop  = "stop"  // struct{} → Receipt; ends every process of the slot, then the agent exits
)

// Ready is the agent's answer to Setup.
type Ready struct {
	PID     int     `json:"pid"`
	SetupMS float64 `json:"setup_ms"`
}
