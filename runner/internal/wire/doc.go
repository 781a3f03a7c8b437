// Package wire encodes, reads and checks the frames of docs/protocol.md and the messages of the
// handshake.
package wire
