package pipe

import "io"

// OnlyReader hides WriteTo of a reader: splice into a pipe that nobody drains has no deadline.
type OnlyReader struct{ io.Reader }

// OnlyWriter hides ReadFrom of a writer, for the same reason.
type OnlyWriter struct{ io.Writer }
