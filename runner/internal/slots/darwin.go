//go:build darwin

package slots

import "hermes-exec/runner/internal/isolation"

const hasRlimits = false

func (s *level) isScoped() bool { return false }

func (s *level) domain() isolation.Domain { return isolation.Domain{} }
