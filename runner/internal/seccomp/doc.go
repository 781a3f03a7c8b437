// Package seccomp installs filters that keep commands from making certain system calls.
//
// The filters apply to the calling thread and to the programs that it starts.
package seccomp
