// Package exec implements the methods of docs/protocol.md for commands, processes, sessions and
// viewers.
//
// Package serve looks a method up in Methods and calls it with a Runner, which holds the scopes of
// the slots.
package exec
