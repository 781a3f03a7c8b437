// Package diskspace measures the free space of file systems, and finds out whether a slot or its
// neighbours have filled one.
//
// Monitor watches the file systems of one slot. The package never removes anything.
package diskspace
