package users

import (
	"os"
	"testing"

	"hermes-exec/runner/internal/isolation"
)

func TestEachHolderHasAUIDThatNobodyHadBefore(t *testing.T) {
	for name, ids := range map[string]isolation.IDRange{"all": {Count: 1<<32 - 1}, "some": {Count: 65536}} {
		a := NewAllocator(isolation.Facts{IDs: ids})
		if a.count > 20_000 {
			a.count, a.start = 10_000, 9_990 // it goes on at the beginning of its range
		}
		seen := map[uint32]bool{}
		for n := uint32(0); ; n++ {
			uid, err := a.Take()
			if err != nil {
				break
			}
			if given, living := a.Given(uid); seen[uid] || !given || !living || a.Index(uid) < n {
				t.Fatalf("%s: %d %v %v %d", name, uid, given, living, a.Index(uid))
			}
			if _, later := a.Given(a.first + (a.start+a.next)%a.count); later {
				t.Fatalf("%s: %d lives before it is given", name, uid)
			}
			seen[uid] = true
			a.End(uid)
			if given, living := a.Given(uid); !given || living {
				t.Fatalf("%s: %d %v %v at its end", name, uid, given, living)
			}
		}
		if len(seen) < 9_000 {
			t.Errorf("%s: %d", name, len(seen))
		}
		for _, uid := range []uint32{0, 1000, a.first - 1, a.first + a.count} {
			if given, _ := a.Given(uid); given {
				t.Errorf("%s: %d was never given", name, uid)
			}
		}
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
