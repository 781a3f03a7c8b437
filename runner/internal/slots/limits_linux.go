package slots

import "hermes-exec/runner/internal/isolation"

const hasRlimits = true

// isScoped reports whether Landlock keeps abstract sockets and signals within the slot.
func (s *level) isScoped() bool {
	shares := s.setup.Level == isolation.Namespaces || s.setup.Level == isolation.UID ||
		s.setup.Level == isolation.Exclusive && s.m.network != ""
	return shares && isolation.CanScope(s.m.facts.LandlockABI)
}
