package agent

import (
	"os"

	"hermes-exec/runner/internal/cgroup"
	"hermes-exec/runner/internal/memory"
)

// platform is what only Linux gives an agent.
type platform struct {
	quotas      cgroup.Quotas
	score       memory.Score
	groupFD     *os.File // version 2 cgroup that commands are cloned into
	childLimits bool     // each command needs limits of its own
}

// begin does what the process cannot do any more once it is undumpable.
func (p *platform) begin() { p.score.Init() }
