// Package ipc is the private connection between the serving runner and a slot's agent.
//
// It carries requests, replies and events with file descriptors. Bodies are JSON; the messages of
// every command have a shorter form of their own (pack.go). Both ends are this program, the agent
// runs no tenant code, and the socket is inherited and has no name.
package ipc
