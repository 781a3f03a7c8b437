package shared

import (
	"cmp"
	"errors"
	"fmt"

	"hermes-exec/runner/internal/sysv"
	"hermes-exec/runner/internal/users"
)

var (
	errAttached   = errors.New("a process of another user has it attached")
	errStillThere = errors.New("it is still there")
)

// removeObjects removes the System V objects of a holder whose processes have ended, and of earlier
// holders whose objects could not be removed. It returns the problems that affect the next holder:
// none if that holder has another uid.
func (p *Cleaner) removeObjects(h Holder) (problems []string) {
	groups := map[uint32]uint32{h.UID: h.GID} // of the users who may have some
	err := sysv.Each(func(o sysv.Object) {
		if uid, gone := p.holderOf(h, o); gone && uid != h.UID {
			groups[uid] = uid
		}
	})
	for uid, gid := range groups {
		err = cmp.Or(err, runAsUser(uid, gid, func() (failed error) {
			unread := sysv.Each(func(o sysv.Object) {
				if keeper, gone := p.holderOf(h, o); gone && keeper == uid {
					failed = cmp.Or(failed, o.Remove())
				}
			})
			return cmp.Or(failed, unread)
		}))
	}
	if h.Own {
		return nil
	}
	unread := sysv.Each(func(o sysv.Object) {
		if keeper, _ := p.holderOf(h, o); keeper != h.UID {
			return
		}
		why := cmp.Or(err, errStillThere)
		if o.Removed {
			why = errAttached
		}
		problems = append(problems, fmt.Sprintf("%v cannot be removed: %v", o, why))
	})
	if unread != nil {
		problems = append(problems, unread.Error())
	}
	return problems
}

// holderOf returns the holder of an object, and whether its processes have ended. If the maker is a
// holder, it is the maker, even if the object was given to somebody else: otherwise one holder
// could make the slot of another unclean with it. If the next holder has the same uid, all objects
// that it may use are removed.
func (p *Cleaner) holderOf(h Holder, o sysv.Object) (uid uint32, gone bool) {
	if !h.Own && (o.Owner == h.UID || o.Maker == h.UID) {
		return h.UID, true
	}
	uid = o.Owner
	if assigned, _ := p.ids.Status(o.Maker); assigned {
		uid = o.Maker
	}
	return uid, isGone(p.ids, h, uid) && !o.Removed
}

// isGone reports whether a uid belongs to a holder whose processes have ended.
func isGone(ids *users.Allocator, h Holder, uid uint32) bool {
	assigned, living := ids.Status(uid)
	return uid != 0 && (uid == h.UID || assigned && !living)
}
