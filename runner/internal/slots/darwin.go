//go:build darwin

package slots

const hasRlimits = false

func (s *level) isScoped() bool { return false }
