package agent

import (
	"os"
	"syscall"
	"time"

	"hermes-exec/runner/internal/isolate"
)

const (
	// thrashEvery is how often a group is looked at that has used up its memory,
	// roomyEvery how often one that has not.
	thrashEvery = 500 * time.Millisecond
	roomyEvery  = 2 * time.Second
	// thrashLooks is how many looks in a row must find the same, and nextLooks
	// how many when that was no relief.
	thrashLooks = 6
	nextLooks   = 2
	// In each of them the files that are left in memory were read anew so many
	// times, and programs have waited so often.
	thrashTurns  = 4
	thrashFaults = 5
	leastCache   = 64 << 10
	// mostCache and mostShare bound what is left of the memory for files then:
	// less than programs need for their own. Who has more gets on, even when all
	// of it is read anew all the time, as with a file that is too large for it.
	mostCache = 4 << 20
	mostShare = 16
)

// relieveThrash ends a process of the slot where memory has run out and the
// kernel does not say so: as long as there is a page of a program's own file
// left, it is dropped for other memory and read again, with all that the disk
// can give, for seconds up to minutes. own says that only this slot uses the
// group; of another one a process is ended that has more than half of it.
func (a *agent) relieveThrash(room *isolate.Room, own bool) {
	if _, tells := room.Paging(); !tells {
		return
	}
	var t thrash
	for {
		if room.Left() > room.Most()/64 {
			t = thrash{}
			time.Sleep(roomyEvery)
			continue
		}
		if now, ok := room.Paging(); ok && t.look(now, room.Most()) {
			a.killers.do(func() {
				largest := a.largestResident()
				if most := largest.rssPages * int64(os.Getpagesize()); most > 0 && (own || most > room.Most()/2) {
					a.watched.Add(1)
					signalProc(largest, syscall.SIGKILL)
				}
			})
			t.looks = thrashLooks - nextLooks
		}
		time.Sleep(thrashEvery)
	}
}

// largestResident is the process of the slot that the kernel would end: the one
// that has most, also of what it shares with others.
func (a *agent) largestResident() (largest proc) {
	all, err := a.snapshot()
	if err != nil {
		return proc{}
	}
	for _, p := range a.tenants(all) {
		if p.rssPages > largest.rssPages {
			largest = p
		}
	}
	return largest
}

// thrash is what looks at a group that has used up its memory have found.
type thrash struct {
	last  isolate.Paging
	looks int
	begun bool
}

// look takes in what is there now of so much memory, and says whether it goes
// on for too long.
func (t *thrash) look(now isolate.Paging, most int64) bool {
	last, begun := t.last, t.begun
	t.last, t.begun = now, true
	again := now.Refaults-last.Refaults >= thrashTurns*max(now.Cache, leastCache) && now.Faults-last.Faults >= thrashFaults
	if !begun || !again || now.Cache > min(mostCache, most/mostShare) {
		t.looks = 0
		return false
	}
	t.looks++
	return t.looks >= thrashLooks
}
