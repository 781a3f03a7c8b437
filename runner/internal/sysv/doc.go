// Package sysv lists and removes System V objects.
//
// Shared memory, semaphores and message queues outlive the processes that made them.
package sysv
