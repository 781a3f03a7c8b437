package cgroup

// Group is one hierarchy in which a group for a slot may be made.
type Group struct {
	Controller string // "memory", "pids", "cpu"; "" for a version 2 directory
	Dir        string // our own group there
	V2         bool
}

// Join is a cgroup that the slot's commands go into.
type Join struct {
	Controller string `json:"controller"`
	Dir        string `json:"dir"`
	V2         bool   `json:"v2"`
}
