package budget

import (
	"sync"
	"testing"
	"time"
)

func TestNothingIsTakenBeyondTheLimit(t *testing.T) {
	b := New(16<<20, nil)
	large, little := b.Open(), b.Open()
	for large.Reserve(1 << 20) {
	}
	if large.Balance() != 12<<20 {
		t.Fatalf("a large holder has %d, and is to leave a quarter", large.Balance())
	}
	if !little.Reserve(modestUse) || little.Reserve(1) {
		t.Fatal("one with little has its share of that quarter, and no more")
	}
	little.Force(6<<20 - modestUse)
	if use := b.Stats(); use.Used != 18<<20 || use.Peak != 18<<20 || !b.IsTight() {
		t.Fatal(use)
	}
	large.Release(1 << 40)
	little.Close()
	if use := b.Stats(); use.Used != 0 || use.Peak != 18<<20 || b.IsTight() {
		t.Fatal(use)
	}
}

func TestOthersMakeRoom(t *testing.T) {
	b := New(MinLimit, nil)
	old, calls := b.Open(), 0
	old.Force(MinLimit)
	b.OnPressure(func(need int64) int64 {
		calls++
		freed := min(need, old.Balance())
		old.Release(freed)
		return freed
	})
	if !b.Open().Reserve(64<<10) || calls != 1 {
		t.Fatal(calls, b.Stats())
	}
	old.Close()
	all := b.Open()
	all.Force(MinLimit)
	calls = 0
	for range 100 {
		if b.Open().Reserve(1) {
			t.Fatal("there is no room")
		}
	}
	if calls > 10 {
		t.Fatalf("asked %d times in vain", calls)
	}
}

func TestABudgetIsPartOfItsSandbox(t *testing.T) {
	b := New(DefaultLimit, nil)
	for _, c := range [][3]int64{{DefaultLimit, 0, DefaultLimit}, {DefaultLimit, 1 << 30, 128 << 20}, {64 << 20, 1 << 30, 64 << 20},
		{DefaultLimit, 1 << 20, MinLimit}} {
		if b.Resize(c[0], c[1]); b.Limit() != c[2] {
			t.Error(c, b.Limit())
		}
	}
	if b.MostOutput() != minOutput {
		t.Error(b.MostOutput())
	}
	var none *Budget
	if account := none.Open(); !account.Reserve(1<<50) || account.Balance() != 0 || none.IsTight() {
		t.Error("no budget is no limit")
	}
}

func TestMemoryIsReturnedAfterTheLastLargeRelease(t *testing.T) {
	rested := make(chan struct{}, 10)
	b := New(DefaultLimit, func() { rested <- struct{}{} })
	account := b.Open()
	account.Force(minTrim - 1)
	account.Close()
	if b.trimTimer != nil {
		t.Fatal("a small release is not worth it")
	}
	account.Force(minTrim)
	account.Close()
	select {
	case <-rested:
	case <-time.After(10 * trimDelay):
		t.Fatal("nothing was returned")
	}
}

func TestAccountsAddUp(t *testing.T) {
	b := New(8<<20, nil)
	b.OnPressure(func(int64) int64 { return 0 })
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			account := b.Open()
			for range 2000 {
				if !account.Reserve(64 << 10) {
					account.Release(640 << 10)
				}
			}
			account.Close()
		})
	}
	all.Wait()
	if use := b.Stats(); use.Used != 0 || use.Peak > 8<<20 {
		t.Fatal(use)
	}
}

type ended struct{ size int64 }

func (e *ended) Memory() int64     { return e.size }
func (e *ended) DropOutput() int64 { freed := e.size; e.size = 0; return freed }

func TestHistoryForgetsTheOldestOfASlot(t *testing.T) {
	var h History
	slots := []string{"a", "b"}
	var all [2][]*ended
	for i := range 3 * MaxEnded {
		for s, slot := range slots {
			e := &ended{1 << 20}
			forgotten := h.Add(slot, e)
			all[s] = append(all[s], e)
			if want := max(0, min(1, i+1-MaxEnded)); len(forgotten) != want {
				t.Fatal(i, len(forgotten))
			}
			if len(forgotten) > 0 && forgotten[0] != EndedProcess(all[s][i-MaxEnded]) {
				t.Fatal("another one was forgotten")
			}
		}
	}
	for _, own := range all {
		kept := int64(0)
		for _, e := range own[len(own)-MaxEnded:] {
			kept += e.size
		}
		if kept != MaxEndedBytes || own[len(own)-1].size == 0 {
			t.Fatal(kept)
		}
	}
	h.Forget("a")
	use := map[any]int64{"b": MaxEndedBytes}
	if freed := h.Reclaim(1<<40, use, 0); freed != MaxEndedBytes-1<<20 || use["b"] != 1<<20 {
		t.Fatal(freed, use)
	}
}

func TestReclaimTakesFromWhoUsesTheMost(t *testing.T) {
	const share = 1 << 20
	for _, c := range []struct {
		name string
		need int64
		use  map[any]int64
		want map[any][]int64
	}{
		{"the oldest, of the larger slot", 1, map[any]int64{"a": 3 << 20, "b": 2 << 20},
			map[any][]int64{"a": {0, 1 << 19, 1 << 19}, "b": {1 << 19, 1 << 19, 1 << 19}}},
		{"no share and nothing that ended last", 1 << 40, map[any]int64{"a": 3 << 20, "b": share},
			map[any][]int64{"a": {0, 0, 1 << 19}, "b": {1 << 19, 1 << 19, 1 << 19}}},
		{"down to the share", 1 << 40, map[any]int64{"a": 3 << 19, "b": 2 << 20},
			map[any][]int64{"a": {0, 1 << 19, 1 << 19}, "b": {0, 0, 1 << 19}}},
	} {
		var h History
		all := map[any][]*ended{}
		for range 3 {
			for _, slot := range []any{"b", "a"} {
				all[slot] = append(all[slot], &ended{1 << 19})
				h.Add(slot, all[slot][len(all[slot])-1])
			}
		}
		h.Reclaim(c.need, c.use, share)
		for slot, want := range c.want {
			for i, e := range all[slot] {
				if e.size != want[i] {
					t.Errorf("%s: entry %d of slot %v has %d", c.name, i, slot, e.size)
				}
			}
		}
	}
}
