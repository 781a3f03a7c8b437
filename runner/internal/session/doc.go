// Package session keeps the state of a shell between commands.
//
// Each command runs in a new shell. It first reads the saved state from a descriptor and writes its
// own state at its exit to a FIFO that it opens then. The state therefore does not depend on the
// command's descriptors, limits and disk, and the output of the command is never parsed. Package
// sessions runs the commands.
package session
