//go:build !linux

// Package rights is what a thread may do, on Linux.
package rights

// ContainerCaps are those of Linux.
var ContainerCaps []int
