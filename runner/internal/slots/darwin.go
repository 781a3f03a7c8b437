//go:build darwin

package slots

const rlimitsWork = false

func (s *level) scoped() bool { return false }
