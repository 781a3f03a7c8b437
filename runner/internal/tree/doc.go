// Package tree removes directory trees that tenants shape.
//
// It handles any depth in bounded memory, works on the calling thread with that thread's rights,
// never follows a link and never leaves the tree: each step is relative to an open directory.
package tree
