package cgroup

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// Room is how much of something a cgroup may use, and uses.
type Room struct{ used, most *os.File }

// Rooms are those of a slot's own groups and of its sandbox; nil where nothing is
// bounded. They are held open, for a view may hide their paths.
type Rooms struct{ PIDs, Memory, SandboxPIDs, SandboxMemory *Room }

var roomFiles = map[string]map[bool][2]string{
	"pids":   {false: {"pids.current", "pids.max"}, true: {"pids.current", "pids.max"}},
	"memory": {false: {"memory.usage_in_bytes", "memory.limit_in_bytes"}, true: {"memory.current", "memory.max"}},
}

// OpenRooms opens the rooms of a slot with these groups.
func OpenRooms(joins []Join) Rooms {
	r := Rooms{SandboxPIDs: sandboxRoom("pids"), SandboxMemory: sandboxRoom("memory")}
	for _, j := range joins {
		if j.holds("pids") {
			r.PIDs = openRoom("pids", j.Dir, j.V2)
		}
		if j.holds("memory") {
			r.Memory = openRoom("memory", j.Dir, j.V2)
		}
	}
	return r
}

// sandboxRoom is the room of the group that the runner itself is in.
func sandboxRoom(controller string) *Room {
	own, v1 := ownCgroups(), "/sys/fs/cgroup/"+controller
	for _, dir := range []string{v1 + own[controller], v1} {
		if r := openRoom(controller, dir, false); r != nil {
			return r
		}
	}
	for _, dir := range []string{"/sys/fs/cgroup" + own[""], "/sys/fs/cgroup"} {
		if r := openRoom(controller, dir, true); r != nil {
			return r
		}
	}
	return nil
}

// SandboxFull says whether the sandbox as a whole may have no more processes.
func SandboxFull() bool {
	r := sandboxRoom("pids")
	defer r.Close()
	return r.Left() <= 0
}

func openRoom(controller, dir string, v2 bool) *Room {
	files := roomFiles[controller][v2]
	used, err := os.Open(filepath.Join(dir, files[0]))
	if err != nil {
		return nil
	}
	most, err := os.Open(filepath.Join(dir, files[1]))
	if err != nil {
		used.Close()
		return nil
	}
	r := &Room{used: used, most: most}
	if r.Most() == unbounded {
		r.Close()
		return nil
	}
	return r
}

// Close gives the files back; a nil Room has none.
func (r *Room) Close() {
	if r != nil {
		r.used.Close()
		r.most.Close()
	}
}

const unbounded = int64(1) << 62

// Most is the bound. A nil Room has none.
func (r *Room) Most() int64 {
	if r == nil {
		return unbounded
	}
	if most, ok := readNumber(r.most); ok {
		return min(most, unbounded)
	}
	return unbounded
}

// Left is what may still be taken; 0 and less when all is used up.
func (r *Room) Left() int64 {
	most := r.Most()
	if most == unbounded {
		return unbounded
	}
	if used, ok := readNumber(r.used); ok {
		return most - used
	}
	return unbounded
}

func readNumber(f *os.File) (int64, bool) {
	var buf [32]byte
	n, _ := f.ReadAt(buf[:], 0)
	value, err := strconv.ParseInt(strings.TrimSpace(string(buf[:n])), 10, 64)
	return value, err == nil
}
