package shared

import (
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"
	"unsafe"

	"hermes-exec/runner/internal/isolation"
	"hermes-exec/runner/internal/sysv"
	"hermes-exec/runner/internal/users"
)

// permissions are struct ipc64_perm, with which the structures of all three
// kinds of objects begin, and room for the rest.
type permissions struct {
	key                  int32
	uid, gid, cuid, cgid uint32
	mode                 uint32
	rest                 [256]byte
}

const (
	ipcSet  = 1
	ipcStat = 2
)

var kinds = []struct {
	name         string
	get, control uintptr
	arguments    [2]uintptr // of get, behind the key
}{
	{"shm", syscall.SYS_SHMGET, syscall.SYS_SHMCTL, [2]uintptr{4096, 0o600}},
	{"sem", syscall.SYS_SEMGET, syscall.SYS_SEMCTL, [2]uintptr{1, 0o600}},
	{"msg", syscall.SYS_MSGGET, syscall.SYS_MSGCTL, [2]uintptr{0o600, 0}},
}

// makeObjects makes one of each kind as a user, and gives them to another one. It
// stays attached to the shared memory until the test ends.
func makeObjects(t *testing.T, maker, owner uint32) {
	t.Helper()
	err := runAsUser(maker, maker, func() error {
		for _, kind := range kinds {
			id, _, errno := syscall.Syscall(kind.get, 0, kind.arguments[0], kind.arguments[1])
			if errno != 0 {
				return errno
			}
			if kind.name == "shm" {
				at, _, errno := syscall.Syscall(syscall.SYS_SHMAT, id, 0, 0)
				if errno != 0 {
					return errno
				}
				t.Cleanup(func() { _, _, _ = syscall.Syscall(syscall.SYS_SHMDT, at, 0, 0) })
			}
			var now permissions
			for _, command := range []uintptr{ipcStat, ipcSet} {
				call := []uintptr{id, command, uintptr(unsafe.Pointer(&now)), 0}
				if kind.name == "sem" {
					call = []uintptr{id, 0, command, uintptr(unsafe.Pointer(&now))}
				}
				if _, _, errno := syscall.Syscall6(kind.control, call[0], call[1], call[2], call[3], 0, 0); errno != 0 {
					return errno
				}
				now.uid = owner
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// objectsOf are those that a user has made or was given, and that are not removed.
func objectsOf(t *testing.T, uid uint32) (found []string) {
	t.Helper()
	err := sysv.Each(func(o sysv.Object) {
		if (o.Owner == uid || o.Maker == uid) && !o.Removed {
			found = append(found, strings.Fields(o.String())[3])
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	return found
}

func placesOf(t *testing.T, holders int) (p *Cleaner, uids []uint32) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("takes root")
	}
	p = New(users.NewAllocator(isolation.Facts{IDs: isolation.IDRange{Count: 1<<32 - 1}}), t.TempDir(), nil)
	for range holders {
		uid, err := p.ids.Allocate()
		if err != nil {
			t.Fatal(err)
		}
		uids = append(uids, uid)
	}
	return p, uids
}

// end is the reset of a slot whose holder has a uid of its own.
func (p *Cleaner) end(uid uint32) []string {
	p.ids.End(uid)
	return p.Remove(Holder{UID: uid, GID: uid, Own: true, Objects: true})
}

var allKinds = []string{"shm", "sem", "msg"}

func TestWhatANeighbourGivesToAHolderIsTheNeighbours(t *testing.T) {
	p, uids := placesOf(t, 2)
	holder, neighbour := uids[0], uids[1]
	makeObjects(t, neighbour, holder)
	makeObjects(t, holder, holder)
	if problems := p.end(holder); len(problems) > 0 {
		t.Errorf("%q", problems)
	}
	if left := objectsOf(t, holder); !slices.Equal(left, allKinds) {
		t.Errorf("of the neighbour's there are %q", left)
	}
	if problems := p.end(neighbour); len(problems) > 0 {
		t.Errorf("%q", problems)
	}
	if left := objectsOf(t, neighbour); len(left) > 0 {
		t.Errorf("%q", left)
	}
}

// Also objects that a neighbour has attached, and objects that the reset of their maker left.
func TestObjectsOfAHolderGoWithAReset(t *testing.T) {
	for name, ownReset := range map[string]bool{"whoever has it": true, "with a later one": false} {
		t.Run(name, func(t *testing.T) {
			p, uids := placesOf(t, 2)
			maker, ended := uids[0], uids[0]
			if ownReset {
				makeObjects(t, maker, uids[1])
			} else {
				makeObjects(t, maker, maker)
				p.ids.End(maker) // its reset removed nothing
				ended = uids[1]
			}
			if problems := p.end(ended); len(problems) > 0 {
				t.Errorf("%q", problems)
			}
			if left := objectsOf(t, maker); len(left) > 0 {
				t.Errorf("%q", left)
			}
		})
	}
}

// The next holder could attach the objects of the last one: it has the same uid.
func TestASlotIsUncleanWhereTheNextHolderMayUseWhatStays(t *testing.T) {
	p, uids := placesOf(t, 1)
	const same = 54321
	makeObjects(t, uids[0], same)
	problems := p.Remove(Holder{UID: same, GID: same, Objects: true})
	if len(problems) != 1 || !strings.Contains(problems[0], "a process of another user has it attached") {
		t.Errorf("%q", problems)
	}
	if left := objectsOf(t, same); len(left) > 0 {
		t.Errorf("%q", left)
	}
	if strings.Contains(strings.Join(problems, ""), "nil") {
		t.Errorf("%q", problems)
	}
}
