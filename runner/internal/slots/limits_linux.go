package slots

import "hermes-exec/runner/internal/isolation"

const rlimitsWork = true

// scoped says whether Landlock keeps abstract sockets and signals within the
// slot.
func (s *level) scoped() bool {
	shares := s.setup.Level == isolation.Namespaces || s.setup.Level == isolation.UID ||
		s.setup.Level == isolation.Exclusive && s.m.network != ""
	return shares && isolation.CanScope(s.m.facts.LandlockABI)
}
