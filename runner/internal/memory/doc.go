// Package memory handles shortage of memory: which process the kernel kills first, which command
// has lost a process, and a limit for slots without a memory cgroup.
package memory
