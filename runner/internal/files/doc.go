// Package files implements the file methods of docs/protocol.md with the rights and in the view of
// the calling thread.
//
// Do is the entry point. Every path is opened on the calling thread; no goroutine started here
// touches the file system.
package files
