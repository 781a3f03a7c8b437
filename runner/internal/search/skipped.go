package search

import "hermes-exec/runner/internal/ipc"

// Reasons for which a search leaves an entry out.
const (
	reasonBinary    = "binary"
	reasonDirectory = "directory" // its name matches, but only files are listed
	reasonHidden    = "hidden"
	reasonIgnored   = "ignored"
	reasonLink      = "link" // contents are searched under a file's own path
)

// maxSkippedPaths bounds the paths for one reason.
const maxSkippedPaths = 5

// Skipped counts the entries that a search left out for one reason. Paths has the first of them.
type Skipped struct {
	Reason string      `json:"reason"`
	Count  int         `json:"count"`
	Paths  []ipc.Bytes `json:"paths"`
}

// skips has one Skipped for each reason.
type skips []Skipped

func (s *skips) add(reason string, path ipc.Bytes) {
	i := 0
	for i < len(*s) && (*s)[i].Reason != reason {
		i++
	}
	if i == len(*s) {
		*s = append(*s, Skipped{Reason: reason})
	}
	entry := &(*s)[i]
	if entry.Count++; len(entry.Paths) < maxSkippedPaths {
		entry.Paths = append(entry.Paths, path)
	}
}
