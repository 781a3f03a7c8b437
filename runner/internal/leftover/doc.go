// Package leftover removes files that a sandbox would leave and its engine could not remove.
//
// Engines hold a descriptor open for each level of a directory tree. A tree with more levels than
// they may have descriptors would stay for ever.
package leftover
