// Package openat contains system calls that take one name relative to an open directory and follow no
// link.
package openat
