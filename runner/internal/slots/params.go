package slots

import (
	"fmt"
	"path/filepath"
	"strings"

	"hermes-exec/runner/internal/gpus"
	"hermes-exec/runner/internal/ipc"
	"hermes-exec/runner/internal/isolation"
)

// CreateParams are the params of slot.create.
type CreateParams struct {
	Slot             string               `json:"slot"`
	Level            string               `json:"level"`
	Floor            string               `json:"floor"`
	Network          bool                 `json:"network"`
	Limits           ipc.Limits           `json:"limits"`
	BestEffortLimits bool                 `json:"best_effort_limits"`
	DefaultLimits    []string             `json:"default_limits"` // limits that nobody has requested
	Env              map[string]ipc.Bytes `json:"env"`
	ReadOnlyPaths    []ipc.Bytes          `json:"readonly_paths"`
	GPUs             *gpus.Request        `json:"gpus"` // with PrivateRoot: GPUs of the host; null: none
	PrivateRoot      bool                 `json:"private_root"`
	OwnRoot          bool                 `json:"own_root"`
	Setup            bool                 `json:"setup"` // with OwnRoot: the slot changes the image below
	Trial            bool                 `json:"trial"` // only its facts are needed: it is destroyed at once
	User             string               `json:"user"`
	Workspace        ipc.Bytes            `json:"workspace"` // of an exclusive slot, and in a root of the slot's own
}

// SlotFacts is the result of slot.create.
type SlotFacts struct {
	Workspace ipc.Bytes         `json:"workspace"`
	Home      ipc.Bytes         `json:"home"`
	Tmp       ipc.Bytes         `json:"tmp"`
	UID       int               `json:"uid"`
	GID       int               `json:"gid"`
	UserName  string            `json:"user_name"`
	Shell     *string           `json:"shell"`   // the best of Shells, by name
	Shells    map[string]string `json:"shells"`  // name (bash, dash, busybox, sh …) → path
	Session   *SessionFacts     `json:"session"` // null: no shell, no session
	Isolation ipc.Isolation     `json:"isolation"`
	Loopback  string            `json:"loopback"` // whose loopback it has: "slot", "sandbox", or another owner's
}

// SessionFacts describes the sessions of the slot.
type SessionFacts struct {
	Shell string   `json:"shell"`
	Keeps []string `json:"keeps"`
}

// ResetResult is the result of slot.reset.
type ResetResult struct {
	Clean       bool        `json:"clean"`
	Killed      ipc.Receipt `json:"killed"`
	Differences []string    `json:"differences"`
	UID         int         `json:"uid"` // of the next holder
	GID         int         `json:"gid"`
}

func failure(kind, format string, args ...any) error {
	return &ipc.Error{Kind: kind, Message: fmt.Sprintf(format, args...)}
}

func (p CreateParams) check() error {
	if !IsID(p.Slot) {
		return failure("bad_request", "slot %q: 1 to 64 letters, digits, dots, dashes and underscores, not beginning "+
			"with a dot", p.Slot)
	}
	if p.Level != "auto" && p.Level != "" && !isolation.IsLevel(p.Level) {
		return failure("bad_request", "unknown isolation level %q", p.Level)
	}
	if p.Floor != "" && !isolation.IsLevel(p.Floor) {
		return failure("bad_request", "unknown isolation floor %q", p.Floor)
	}
	for name, n := range map[string]*int64{"memory_mb": p.Limits.MemoryMB, "pids": p.Limits.PIDs,
		"disk_mb": p.Limits.DiskMB, "open_files": p.Limits.OpenFiles, "file_size_mb": p.Limits.FileSizeMB} {
		if n != nil && (*n <= 0 || *n > 1<<40) {
			return failure("bad_request", "limit %s is %d", name, *n)
		}
	}
	for name, n := range map[string]*float64{"cpus": p.Limits.CPUs, "cpu_time_s": p.Limits.CPUTimeS} {
		if n != nil && !(*n > 0 && *n < 1e9) {
			return failure("bad_request", "limit %s is %v", name, *n)
		}
	}
	if p.Workspace != "" && !filepath.IsAbs(string(p.Workspace)) {
		return failure("bad_request", "workspace %q is not absolute", p.Workspace)
	}
	for key := range p.Env {
		if !validKey(key) {
			return failure("bad_request", "environment name %q", key)
		}
	}
	return nil
}

// IsID reports whether a driver may choose an id: 1 to 64 letters, digits, dots, dashes and
// underscores, not beginning with a dot.
func IsID(id string) bool {
	if id == "" || len(id) > 64 || id[0] == '.' {
		return false
	}
	for _, c := range []byte(id) {
		letter := c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9'
		if !letter && c != '.' && c != '-' && c != '_' {
			return false
		}
	}
	return true
}

func validKey(key string) bool { return key != "" && !strings.ContainsAny(key, "=\x00") }
