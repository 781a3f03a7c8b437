package layers

// IsSupported reports whether this system has the functions of this package.
const IsSupported = true

func (b Bound) isBelow(s Size) bool {
	return b.Entries > 0 && s.Entries > b.Entries || b.Bytes > 0 && s.Bytes > b.Bytes
}

const (
	maxSkipped = 100
	// maxPath bounds the paths in errors.
	maxPath = 1000
)

func (s *Skipped) add(path, reason string) {
	if s.Count++; s.Count <= maxSkipped {
		s.Entries = append(s.Entries, shorten(path)+": "+reason)
	}
}

// shorten bounds a path in a message.
func shorten(path string) string {
	if len(path) > maxPath {
		path = path[:maxPath/2] + "…" + path[len(path)-maxPath/2:]
	}
	return path
}
