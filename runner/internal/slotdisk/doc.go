// Package slotdisk makes file systems of a limited size, each for one slot.
//
// A Disk is an ext4 file system in a sparse file without a name, on a loop device that the kernel
// releases with the last use of the file system. So nothing is left of it when the runner and the
// slot's agent have ended, however they ended.
package slotdisk
