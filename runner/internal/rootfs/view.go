package rootfs

import (
	"errors"
	"slices"
	"strings"

	"hermes-exec/runner/internal/accounts"
)

// View is the file system that a slot sees.
type View struct {
	Kind     string   `json:"kind"`    // "" shared with the sandbox, "private", "sandbox" or "own"
	Staging  string   `json:"staging"` // an empty directory of the runner
	BaseDir  string   `json:"base_dir"`
	Binds    []Bind   `json:"binds"` // the slot's own directories
	ReadOnly []string `json:"read_only"`
	Devices  []string `json:"devices,omitempty"` // of "private": further device nodes, which need /sys
	Passwd   string   `json:"passwd"`
	Group    string   `json:"group"`
	Hostname string   `json:"hostname"`
	Network  bool     `json:"network"` // shared with the sandbox; false: only a loopback interface
	Disk     *Disk    `json:"disk,omitempty"`
	Pids     bool     `json:"pids"` // the agent is the first process of its own pid namespace
	ByBwrap  bool     `json:"made"` // bubblewrap has made everything

	// Of "sandbox", if the image may belong to the slots' own user: everything is read-only except
	// the slot's directories and the shared directories.
	ImageReadOnly bool     `json:"image_read_only,omitempty"`
	Shared        []string `json:"shared,omitempty"`

	// Of "own": the image below the slot's layers, an empty directory for them ("": none, the root
	// is the sandbox's), the slot's working directory with its owner, and the limit of processes
	// (0: none).
	Image     *Image        `json:"image,omitempty"`
	Layer     string        `json:"layer,omitempty"`
	Workspace string        `json:"workspace,omitempty"`
	Owner     accounts.User `json:"owner,omitzero"`
	MaxPIDs   int64         `json:"most_pids,omitempty"`

	// Of "own" with layers: the directory that holds them, the layers between the image and Layer, the
	// oldest first, and the paths of directories that must be proven closed.
	Store  string   `json:"store,omitempty"`
	Stack  []Layer  `json:"stack,omitempty"`
	Frozen []string `json:"frozen,omitempty"`
}

// Layer is changes to some directories of the image: ID/N in the store for directory N, of which 0 is
// the skeleton and 1 the first of Image.Directories.
type Layer struct {
	ID    string `json:"id"`
	Parts []int  `json:"parts"`
}

// ErrInUse means that a file of a frozen layer is open.
var ErrInUse = errors.New("a file of the slot is open elsewhere")

// Image describes a sandbox for slots with a root of their own.
type Image struct {
	Skeleton    string        `json:"skeleton"`    // a directory of the runner, for the root and mount points
	Directories []string      `json:"directories"` // directories of the sandbox with a layer over each, parents first
	Memory      []MemoryMount `json:"memory"`      // file systems in memory, mounted anew
	Shared      []string      `json:"shared"`      // mounts of the sandbox that all slots write to
	ReadOnly    []string      `json:"read_only"`   // read-only mounts of the sandbox
	Devices     []string      `json:"devices"`
	ShmSize     string        `json:"shm_size"` // of /dev/shm
}

// LayerDirectories returns the directories that have layers, by their numbers.
func (i *Image) LayerDirectories() []string { return append([]string{"/"}, i.Directories...) }

// MountPoints returns the paths below one of these directories, relative to it, at which something is
// mounted.
func (i *Image) MountPoints(directory string) []string {
	points := slices.Concat([]string{"/proc", "/sys", "/dev"}, i.Directories, i.Shared, i.ReadOnly)
	for _, m := range i.Memory {
		points = append(points, m.Path)
	}
	var below []string
	for _, path := range points {
		if rest, ok := strings.CutPrefix(path, strings.TrimSuffix(directory, "/")+"/"); ok {
			below = append(below, rest)
		}
	}
	return below
}

// MemoryMount is a tmpfs.
type MemoryMount struct {
	Path    string `json:"path"`
	Flags   uint64 `json:"flags"`
	Options string `json:"options"`
}

// Bind shows Source, a directory of the sandbox, at Target.
type Bind struct {
	Source string `json:"source"`
	Target string `json:"target"`

	ReadOnly bool `json:"read_only,omitempty"`
	OnDisk   bool `json:"on_disk,omitempty"` // if the view has a Disk, Source is made there
}

// Disk is a file system of a limited size for all that the slot writes. It is mounted in the slot's
// mount namespace only, so it ends with the slot's processes.
type Disk struct {
	At     string `json:"at"` // a directory of the runner
	Bytes  int64  `json:"bytes"`
	InFile bool   `json:"in_file"` // the runner has made it; otherwise it is a tmpfs
	FD     int    `json:"-"`       // of the runner's mount, if InFile
}

// Kinds of views.
const (
	ViewShared  = ""
	ViewPrivate = "private"
	ViewSandbox = "sandbox"
	ViewOwn     = "own"
)
