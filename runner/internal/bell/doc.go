// Package bell wakes a thread that waits in the kernel.
//
// A ring before the wait is not lost, and several rings count as one.
package bell
