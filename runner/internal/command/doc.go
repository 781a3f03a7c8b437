// Package command runs one program in a slot: it makes the pipes, has the agent start the program,
// reads its output and waits for its end.
//
// Starter starts commands, Pump reads their pipes, and Scope is the time from a slot's first use to
// its next reset, with which all commands of the slot end.
package command
