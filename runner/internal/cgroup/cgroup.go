package cgroup

// Group is a hierarchy in which a slot can have a group.
type Group struct {
	Controller string // "memory", "pids", "cpu"; "" for a version 2 directory
	Dir        string // the runner's own group there
	V2         bool
}

// Join is a cgroup for the slot's commands.
type Join struct {
	Controller string `json:"controller"`
	Dir        string `json:"dir"`
	V2         bool   `json:"v2"`
}
