// Package cgroup makes the cgroups that hold a slot's limits, for version 1 and 2, and reads how
// much of a limit is left.
//
// Probe finds the hierarchies that can be used; Make creates the groups of a slot and reports which
// limits they enforce. Other limits are set by package limits.
package cgroup
