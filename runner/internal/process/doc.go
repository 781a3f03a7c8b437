// Package process keeps the long-lived commands of slots: their output by offset, their input,
// their signals, and the last ones that have ended.
//
// Registry.Adopt takes a started command over; Methods are the methods of docs/protocol.md for one
// process.
package process
