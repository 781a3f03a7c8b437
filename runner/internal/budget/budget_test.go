package budget

import (
	"sync"
	"testing"
	"time"
)

func TestNothingIsTakenBeyondTheLimit(t *testing.T) {
	b := New(16<<20, nil)
	large, little := b.Open(), b.Open()
	for large.Take(1 << 20) {
	}
	if large.Held() != 12<<20 {
		t.Fatalf("a large holder has %d, and is to leave a quarter", large.Held())
	}
	if !little.Take(modest) || little.Take(1) {
		t.Fatal("one with little has its share of that quarter, and no more")
	}
	little.Force(6<<20 - modest)
	if use := b.Stats(); use.Used != 18<<20 || use.Peak != 18<<20 || !b.Tight() {
		t.Fatal(use)
	}
	large.Give(1 << 40)
	little.Close()
	if use := b.Stats(); use.Used != 0 || use.Peak != 18<<20 || b.Tight() {
		t.Fatal(use)
	}
}

func TestOthersMakeRoom(t *testing.T) {
	b := New(Least, nil)
	old, calls := b.Open(), 0
	old.Force(Least)
	b.OnPressure(func(need int64) int64 {
		calls++
		freed := min(need, old.Held())
		old.Give(freed)
		return freed
	})
	if !b.Open().Take(64<<10) || calls != 1 {
		t.Fatal(calls, b.Stats())
	}
	old.Close()
	all := b.Open()
	all.Force(Least)
	calls = 0
	for range 100 {
		if b.Open().Take(1) {
			t.Fatal("there is no room")
		}
	}
	if calls > 10 {
		t.Fatalf("asked %d times in vain", calls)
	}
}

func TestABudgetIsPartOfItsSandbox(t *testing.T) {
	b := New(Default, nil)
	for _, c := range [][3]int64{{Default, 0, Default}, {Default, 1 << 30, 128 << 20}, {64 << 20, 1 << 30, 64 << 20},
		{Default, 1 << 20, Least}} {
		if b.Resize(c[0], c[1]); b.Limit() != c[2] {
			t.Error(c, b.Limit())
		}
	}
	if b.MostOutput() != leastOutput {
		t.Error(b.MostOutput())
	}
	var none *Budget
	if account := none.Open(); !account.Take(1<<50) || account.Held() != 0 || none.Tight() {
		t.Error("no budget is no limit")
	}
}

func TestMemoryIsReturnedAfterTheLastLargeRelease(t *testing.T) {
	rested := make(chan struct{}, 10)
	b := New(Default, func() { rested <- struct{}{} })
	account := b.Open()
	account.Force(worthwhile - 1)
	account.Close()
	if b.rest != nil {
		t.Fatal("a small release is not worth it")
	}
	account.Force(worthwhile)
	account.Close()
	select {
	case <-rested:
	case <-time.After(10 * restTime):
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
				if !account.Take(64 << 10) {
					account.Give(640 << 10)
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
	for i := range 3 * MostEnded {
		for s, slot := range slots {
			e := &ended{1 << 20}
			forgotten := h.Add(slot, e)
			all[s] = append(all[s], e)
			if want := max(0, min(1, i+1-MostEnded)); len(forgotten) != want {
				t.Fatal(i, len(forgotten))
			}
			if len(forgotten) > 0 && forgotten[0] != Entry(all[s][i-MostEnded]) {
				t.Fatal("another one was forgotten")
			}
		}
	}
	for _, own := range all {
		kept := int64(0)
		for _, e := range own[len(own)-MostEnded:] {
			kept += e.size
		}
		if kept != MostEndedBytes || own[len(own)-1].size == 0 {
			t.Fatal(kept)
		}
	}
	h.Forget("a")
	use := map[any]int64{"b": MostEndedBytes}
	if freed := h.Reclaim(1<<40, use, 0); freed != MostEndedBytes-1<<20 || use["b"] != 1<<20 {
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
