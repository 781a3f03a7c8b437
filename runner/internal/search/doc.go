// Package search finds text and files below a directory: regular expressions or literal text,
// globs, ignore files, exact totals and bounded memory.
//
// Directories are read and files opened on the calling thread, whose rights apply. Only the
// contents of open files are searched on other threads.
package search
