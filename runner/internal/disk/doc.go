// Package disk contains file operations that differ between operating systems: renames without
// replacing, reserved space, sparse copies, and places on the disk.
package disk
