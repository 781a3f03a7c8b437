package command

import (
	"hermes-exec/runner/internal/ipc"
	"hermes-exec/runner/internal/output"
)

// Usage is the resource usage of a process, without its living descendants.
type Usage struct {
	UserS   float64 `json:"user_s"`
	SystemS float64 `json:"system_s"`
	MaxRSS  int64   `json:"max_rss_bytes"`
}

// Result is Exit of docs/protocol.md. Empty fields are left out, because the driver would spend
// more time on them than on the rest.
//
// Not the obvious code: see docs/why-not-obvious.md ("Results without empty fields").
type Result struct {
	ExitCode    int              `json:"exit_code"`
	Signal      *int             `json:"signal,omitempty"`
	TimedOut    bool             `json:"timed_out,omitempty"`
	Canceled    bool             `json:"canceled,omitempty"`
	OOMKilled   bool             `json:"oom_killed,omitempty"`
	DurationS   float64          `json:"duration_s"`
	Usage       Usage            `json:"usage"`
	Stdout      output.Counts    `json:"stdout,omitzero"`
	Stderr      output.Counts    `json:"stderr,omitzero"`
	Merged      output.Counts    `json:"merged,omitzero"`
	Segments    []output.Segment `json:"segments,omitempty"`
	Spill       *ipc.Bytes       `json:"spill_path,omitempty"`
	StderrSpill *ipc.Bytes       `json:"stderr_spill_path,omitempty"`
	Killed      *ipc.Receipt     `json:"killed,omitempty"`
	Started     bool             `json:"started"`
	Reason      *string          `json:"reason,omitempty"`
	Cwd         *ipc.Bytes       `json:"cwd,omitempty"`
	StateLost   string           `json:"state_lost,omitempty"`
	DiskFull    bool             `json:"disk_nearly_full,omitempty"`
}

// SetExit sets the fields that describe the end of the process.
func (r *Result) SetExit(e ipc.Exit) {
	r.ExitCode, r.OOMKilled = e.ExitCode, e.OOMKilled
	if e.Signal != 0 {
		r.Signal = &e.Signal
	}
	r.Usage = Usage{e.UserS, e.SystemS, e.MaxRSS}
}

// KillResult returns the result of the methods that kill.
func KillResult(receipt ipc.Receipt) any {
	return map[string]ipc.Receipt{"killed": withHandles(receipt)}
}

// withHandles makes an empty list of handles a list in JSON too.
func withHandles(r ipc.Receipt) ipc.Receipt {
	if r.Handles == nil {
		r.Handles = []string{}
	}
	return r
}
