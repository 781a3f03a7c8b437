package tenants

import "hermes-exec/runner/internal/proc"

// claims holds which command each process belongs to, and by which handle that is known. Token 0
// means no command, or, with a handle, a command that is no longer in the table.
type claims struct {
	token   map[int]uint64
	handle  map[int]string
	forking uint64 // start of the oldest fork that is not entered yet, in clock ticks
}

const (
	handleGroupID   = "group_id"
	handleSession   = "session"
	handleParent    = "descendants"
	handleMarker    = "environment"
	handleStartTime = "started_since"
)

// claim attributes processes to commands, by the most reliable handles first. With markers it also
// reads environments, which costs more.
func (t *Tenants) claim(procs map[int]proc.Process, markers bool) claims {
	c := claims{token: make(map[int]uint64, len(procs)), handle: make(map[int]string, len(procs))}
	leaders, forking := t.table.Leaders()
	c.forking = forking
	for pid, p := range procs {
		if token, ok := t.byGroup(p); ok {
			c.set(pid, token, handleGroupID)
		}
	}
	for pid, p := range procs {
		if c.token[pid] != 0 {
			continue
		}
		for _, number := range [2]int{p.Session, p.Group} {
			if token, ok := leaders[number]; ok && t.stillLeads(procs, number, token) {
				c.set(pid, token, handleSession)
				break
			}
		}
	}
	if markers {
		for pid := range procs {
			if c.token[pid] != 0 {
				continue
			}
			if token, ok := t.markToken(pid); ok {
				c.set(pid, token, handleMarker)
			}
		}
	}
	c.inherit(procs)
	return c
}

func (c claims) set(pid int, token uint64, handle string) {
	c.token[pid], c.handle[pid] = token, handle
}

// inherit attributes unclaimed processes to the command of their nearest claimed ancestor.
func (c claims) inherit(procs map[int]proc.Process) {
	for pid, p := range procs {
		if c.token[pid] != 0 {
			continue
		}
		for each := range proc.Lineage(procs, p) {
			if token := c.token[each.Parent]; token != 0 {
				c.set(pid, token, handleParent)
				break
			}
		}
	}
}

// byGroup reads the additional group id that names the command. If few ids exist they are reused: a
// process older than the command belongs to an earlier one.
func (t *Tenants) byGroup(p proc.Process) (uint64, bool) {
	track := t.setup.Track
	for _, g := range p.Groups {
		if track.Count == 0 || g < track.First || g-track.First >= track.Count {
			continue
		}
		return t.table.Newest(uint64(g-track.First), uint64(track.Count), p.Start)
	}
	return 0, false
}

// stillLeads returns false if a command's leader has ended and its number now belongs to a process
// that has started later.
func (t *Tenants) stillLeads(procs map[int]proc.Process, number int, token uint64) bool {
	p, alive := procs[number]
	if !alive {
		return true
	}
	c, ok := t.table.Get(token)
	return !ok || !c.Ended || p.Start < c.EndedAt
}
