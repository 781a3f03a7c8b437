// Package limits sets the resource limits (rlimits) of a slot's processes, and bounds resources
// that the kernel counts by user.
//
// Limits that cgroups can hold are in package cgroup.
package limits
