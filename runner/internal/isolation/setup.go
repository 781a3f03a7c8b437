package isolation

import (
	"hermes-exec/runner/internal/cgroup"
	"hermes-exec/runner/internal/ipc"
	"hermes-exec/runner/internal/rootfs"
)

// Setup describes the slot to its agent. It is the first message on the link.
type Setup struct {
	Slot  string `json:"slot"`
	Boot  string `json:"boot"`
	Level string `json:"level"`

	UID      uint32   `json:"uid"`
	GID      uint32   `json:"gid"`
	Groups   []uint32 `json:"groups,omitempty"`
	UserName string   `json:"user_name"`
	Switch   bool     `json:"switch"` // the agent is root and switches to UID for all its work for the slot
	Track    IDRange  `json:"track"`  // additional group ids that name commands; Count 0: none may be set

	SpawnLanes int `json:"spawn_lanes"` // how many of the lanes lead to threads that fork

	// Filter: the engine does not keep an exclusive slot from system calls.
	Filter bool `json:"filter,omitempty"`

	// OneID: the runner is root of a user namespace in which no other ids exist.
	OneID bool `json:"one_id,omitempty"`

	View      rootfs.View   `json:"view"`
	Caps      []int         `json:"caps,omitempty"` // capabilities of root in a slot with a root of its own
	Workspace string        `json:"workspace"`
	Home      string        `json:"home"`
	Tmp       string        `json:"tmp"`
	Limits    ipc.Limits    `json:"limits"`
	Cgroups   []cgroup.Join `json:"cgroups,omitempty"`
	// RLimits names the limits that are held by rlimits, because no cgroup holds them.
	RLimits []string `json:"rlimits,omitempty"`
	// CountingUID is the user for whom the kernel counts the resources of this slot only; 0: the
	// runner's user. NamespaceMost limits these resources.
	CountingUID   uint32           `json:"counted_as,omitempty"`
	NamespaceMost map[string]int64 `json:"namespace_most,omitempty"`
	// Watch is the memory limit in bytes that a watchdog holds, 0 for none.
	Watch int64 `json:"watch,omitempty"`
	// ServePID is the pid of the serving runner in this sandbox.
	ServePID int `json:"serve_pid"`
	// Successor: an agent of the slot has died before this one.
	Successor bool `json:"successor,omitempty"`
	// Since is the time (BootTicks) before which no tenant has started anything.
	Since uint64 `json:"since"`
}

// AsImage reports whether the slot has the image to itself and runs as its users.
func (s Setup) AsImage() bool { return s.Level == Exclusive || s.OwnRoot() }

// OwnRoot reports whether the slot has a root of its own.
func (s Setup) OwnRoot() bool { return s.View.Kind == rootfs.ViewOwn }

// Operations of an agent in addition to the operations of package ipc.
const (
	OpSetup = "setup" // Setup → Ready
	OpStop  = "stop"  // struct{} → Receipt; ends every process of the slot, then the agent exits
)

// InUse is the kind of the error if a frozen layer of the slot may still change (rootfs.ErrInUse).
const InUse = "in_use"

// Ready is the agent's answer to Setup.
type Ready struct {
	PID     int     `json:"pid"`
	SetupMS float64 `json:"setup_ms"`
}
