package users

import (
	"os"
	"runtime"
	"testing"

	"hermes-exec/runner/internal/isolation"
)

func TestEachHolderHasAUIDThatNobodyHadBefore(t *testing.T) {
	few := NewAllocator(isolation.Facts{IDs: isolation.IDRange{Count: 65536}})
	many := NewAllocator(isolation.Facts{IDs: isolation.IDRange{Count: 1<<32 - 1}})
	for name, a := range map[string]*Allocator{"many": many, "few": few} {
		seen := map[uint32]bool{}
		for n := uint32(0); n < 2*maxBlockSize; n++ {
			uid, err := a.Allocate()
			if err != nil {
				break
			}
			if given, living := a.Status(uid); seen[uid] || !given || !living || a.Index(uid) < n {
				t.Fatalf("%s: %d %v %v %d", name, uid, given, living, a.Index(uid))
			}
			if later := a.blocks[len(a.blocks)-1] + (a.start+a.next)%a.size; a.next%a.size != 0 {
				if given, _ := a.Status(later); given {
					t.Fatalf("%s: %d lives before it is given", name, later)
				}
			}
			seen[uid] = true
			a.End(uid)
			if given, living := a.Status(uid); !given || living {
				t.Fatalf("%s: %d %v %v at its end", name, uid, given, living)
			}
		}
		if want := map[string]int{"many": 2 * maxBlockSize, "few": 16_368}[name]; len(seen) != want {
			t.Errorf("%s: %d", name, len(seen))
		}
		for _, uid := range []uint32{0, 1000, a.first - 1, a.first + a.count*a.size} {
			if given, _ := a.Status(uid); given {
				t.Errorf("%s: %d was never given", name, uid)
			}
		}
	}
}

// One removes what holders have left by their uids, and takes nothing of
// another's holders.
func TestRunnersOfAHostHaveNoUIDInCommon(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("slots have no uids of their own")
	}
	var all []*Allocator
	for range 8 {
		a := newAllocator(isolation.IDRange{First: 1 << 30, Count: 16 * 64}, isolation.IDRange{})
		for range 65 { // a block, and the first of another one
			uid, err := a.Allocate()
			if err != nil {
				t.Fatal(err)
			}
			for _, other := range all {
				if given, _ := other.Status(uid); given {
					t.Fatalf("%d is also another runner's", uid)
				}
			}
		}
		all = append(all, a)
	}
	// All blocks are claimed: another runner works all the same.
	if _, err := newAllocator(isolation.IDRange{First: 1 << 30, Count: 16 * 64}, isolation.IDRange{}).Allocate(); err != nil {
		t.Error(err)
	}
}

func TestALineOfATableIsChangedInPlace(t *testing.T) {
	path := t.TempDir() + "/passwd"
	for _, step := range []struct{ before, line, after string }{
		{"a:x:1:\nslot1:x:10:\nb:x:2:\n", "slot1:x:11:\n", "a:x:1:\nslot1:x:11:\nb:x:2:\n"},
		{"a:x:1:\nslot1:x:10:\nb:x:2:\n", "slot1:x:1000:\n", "a:x:1:\nslot1:x:1000:\nb:x:2:\n"},
		{"a:x:1:\nslot1:x:1000:\nb:x:2:\n", "slot1:x:9:\n", "a:x:1:\nslot1:x:9:\nb:x:2:\n"},
		{"a:x:1:\nslot1:x:1000:\nb:x:2:\n", "", "a:x:1:\nb:x:2:\n"},
		{"slot1:x:11:\nslot11:x:1:\n", "slot1:x:11:\n", "slot1:x:11:\nslot11:x:1:\n"},
		{"a:x:1:\n", "slot1:x:9:\n", "a:x:1:\n"},
	} {
		if err := os.WriteFile(path, []byte(step.before), 0o644); err != nil {
			t.Fatal(err)
		}
		err := changeLine(path, "slot1", step.line)
		if got, _ := os.ReadFile(path); err != nil || string(got) != step.after {
			t.Errorf("%q with %q: %q, %v", step.before, step.line, got, err)
		}
	}
}
