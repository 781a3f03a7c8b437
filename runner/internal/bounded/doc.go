// Package bounded reads files and directories that a tenant may have shaped.
//
// It never reads more than the caller allows, and it opens only regular files, so that a FIFO or a
// device cannot block the reader.
package bounded
