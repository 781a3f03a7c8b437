//go:build darwin

package slots

const rlimitsWork = false

func (s *rung) scoped() bool { return false }
