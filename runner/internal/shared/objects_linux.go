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

// removeObjects removes the System V objects of a holder who is gone, and those
// of earlier ones that could not be removed then. The problems are what is left to
// the next holder: nothing, where that has another uid.
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

// holderOf tells with whose end an object goes, and whether that has come. It is
// its maker's, whomever that gave it to, where the maker is a holder: one holder
// cannot make another one's slot unclean with it. Where the next holder has the
// same uid all that this one may use goes with it.
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

// isGone tells whether a uid is that of a holder whose processes are gone.
func isGone(ids *users.Allocator, h Holder, uid uint32) bool {
	assigned, living := ids.Status(uid)
	return uid != 0 && (uid == h.UID || assigned && !living)
}
