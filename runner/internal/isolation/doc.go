// Package isolation finds out how slots can be kept apart in this sandbox, and starts agents in
// namespaces.
//
// Probe tries each mechanism (namespaces, uids, Landlock, cgroups) and never parses the output of
// programs. Setup describes the slot to its agent. Package rootfs makes the slot's file system.
package isolation
