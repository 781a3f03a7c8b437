// Package archive sends a directory as a tar stream (Pack) and writes a tar stream below a
// directory (Unpack).
//
// Unpack does not trust the stream: no entry is written outside the directory or through a symbolic
// link.
package archive
