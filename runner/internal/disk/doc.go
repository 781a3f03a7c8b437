// Package disk contains file operations that differ between operating systems: renames without
// replacing, reserved space and sparse copies.
package disk
