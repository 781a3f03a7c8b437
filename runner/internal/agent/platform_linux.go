package agent

import (
	"os"

	"hermes-exec/runner/internal/cgroup"
	"hermes-exec/runner/internal/memory"
)

// platform holds the state of an agent that exists on Linux only.
type platform struct {
	quotas      cgroup.Quotas
	score       memory.Score
	groupFD     *os.File // the version 2 cgroup that commands are cloned into
	childLimits bool     // whether each command needs limits of its own
}

// begin does the steps that an undumpable process cannot do.
func (p *platform) begin() { p.score.Init() }
