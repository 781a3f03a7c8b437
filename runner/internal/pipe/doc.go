// Package pipe makes the descriptors that commands get (pipes, terminals, files in memory) and the
// sockets of slots, and reads the runner's ends of them.
package pipe
