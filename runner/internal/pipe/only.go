package pipe

import "io"

// OnlyReader and OnlyWriter hide ReadFrom and WriteTo: splice into a pipe that
// nobody drains has no deadline.
type OnlyReader struct{ io.Reader }

// OnlyWriter is OnlyReader for the other direction.
type OnlyWriter struct{ io.Writer }
