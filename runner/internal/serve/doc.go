// Package serve is the serving runner.
//
// Server holds the lease and implements the methods of docs/protocol.md for slots, files,
// connections and the sandbox; package exec implements those for commands. The work itself is done
// by the agents of the slots.
package serve
