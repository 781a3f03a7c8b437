package output

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"testing"

	"hermes-exec/runner/internal/budget"
)

// short is a budget of which so much is left.
func short(left int64) (*budget.Budget, *budget.Account) {
	b := budget.New(16<<20, nil)
	others := b.Open()
	others.Force(16<<20 - left)
	return b, others
}

// prefix is how much of two texts is the same.
func prefix(a, b []byte) (n int) {
	for n < len(a) && n < len(b) && a[n] == b[n] {
		n++
	}
	return n
}

// consistent fails unless the kept output is head and tail of the whole.
func consistent(t *testing.T, where string, all []byte, kept Counts, got string) {
	t.Helper()
	head, tail := int(kept.Head), int(kept.Tail)
	if kept.Total != int64(len(all)) || head+tail != len(got) || got[:head] != string(all[:head]) ||
		got[head:] != string(all[len(all)-tail:]) {
		t.Fatalf("%s: %+v of %d bytes, got %d, the first %d right", where, kept, len(all), len(got),
			prefix(all, []byte(got)))
	}
}

func TestCollectorWithLittleMemoryTellsTheTruth(t *testing.T) {
	noise := make([]byte, 102_000)
	for i := range noise {
		noise[i] = byte(rand.IntN(256))
	}
	for seed := range uint64(30) {
		random := rand.New(rand.NewPCG(seed, 2))
		memory, _ := short(random.Int64N(3 << 20))
		spills, _ := diskSpills(t)
		c := NewCollector(1<<20, spills, "x", memory)
		var all [4][]byte
		streams, piece := 1+random.IntN(2), 1+random.IntN(100_000)
		for range random.IntN(150) {
			stream := 1 + random.IntN(streams)
			p := noise[random.IntN(1000):][:random.IntN(piece)]
			c.Write(stream, p)
			all[stream] = append(all[stream], p...)
			all[Merged] = append(all[Merged], p...)
		}
		r := c.Finish()
		where := fmt.Sprintf("seed %d", seed)
		consistent(t, where+" stdout", all[Stdout], r.Stdout, join(r.StdoutParts))
		consistent(t, where+" stderr", all[Stderr], r.Stderr, join(r.StderrParts))
		consistent(t, where+" merged", all[Merged], r.Merged, assemble(t, r))
		for _, s := range []struct {
			kept  Counts
			spill string
			all   []byte
		}{{r.Stdout, r.StdoutSpill, all[Stdout]}, {r.Stderr, r.StderrSpill, all[Stderr]}} {
			if s.kept.Head+s.kept.Tail == s.kept.Total {
				continue
			}
			if whole, err := os.ReadFile(s.spill); err != nil || !bytes.Equal(whole, s.all) {
				t.Fatalf("%s: something was dropped, and the file is not whole: %v", where, err)
			}
		}
		c.Close()
		if use := memory.Stats(); use.Used > 16<<20 {
			t.Fatalf("%s: not all was given back: %+v", where, use)
		}
	}
}

func TestCollectorTakesTwiceItsLimit(t *testing.T) {
	const limit = 8 << 20
	memory := budget.New(budget.DefaultLimit, nil)
	c := NewCollector(limit, nil, "x", memory)
	block := make([]byte, 60<<10)
	for i := range 1000 {
		c.Write(1+i%2, block)
	}
	r := c.Finish()
	if want := (Counts{500 * 60 << 10, limit * 2 / 5, limit - limit*2/5}); r.Stdout != want || r.Stderr != want {
		t.Fatalf("%+v", r)
	}
	if use := memory.Stats(); use.Peak > 2*limit+limit/4 {
		t.Fatalf("%+v", use)
	}
	c.Close()
	if use := memory.Stats(); use.Used != 0 {
		t.Fatalf("%+v", use)
	}
}

func TestLogWithoutAFileKeepsLittle(t *testing.T) {
	memory := budget.New(budget.DefaultLimit, nil)
	for name, spills := range map[string]*Spills{"nowhere": nil, "no room": {
		Open:   func(string) (*os.File, string, error) { return nil, "", os.ErrPermission },
		Remove: func(string) {}}} {
		l := NewLog(MaxSpill, spills, "log", memory)
		for range 200 {
			l.Write(make([]byte, 64<<10))
		}
		if total, kept := l.Total(); total != 200*64<<10 || kept != memorySize {
			t.Fatalf("%s: %d of %d", name, kept, total)
		}
		if use := memory.Stats(); use.Peak > 2*memorySize {
			t.Fatalf("%s: %+v", name, use)
		}
		l.Close()
	}
	if use := memory.Stats(); use.Used != 0 {
		t.Fatalf("%+v", use)
	}
}

func TestLogHasNoMemoryOfWhatIsInItsFile(t *testing.T) {
	memory := budget.New(budget.DefaultLimit, nil)
	spills, _ := diskSpills(t)
	l := NewLog(1<<20, spills, "log", memory)
	want := bytes.Repeat([]byte("0123456789abcdef"), 64<<10)
	l.Write(want)
	if l.Shrink() == 0 || l.Memory() != 0 {
		t.Fatal("the living log holds what its file has")
	}
	l.Write([]byte("more"))
	l.End()
	if l.Memory() != 0 || l.DropOutput() != 0 {
		t.Fatal("an ended log holds memory")
	}
	var got []byte
	for end := false; !end; {
		var part []byte
		part, _, end = l.Read(int64(len(got)), 100_000)
		got = append(got, part...)
	}
	if string(got) != string(want)+"more" {
		t.Fatal(len(got))
	}
}

func TestDroppedOutputIsCountedAsLost(t *testing.T) {
	memory := budget.New(budget.DefaultLimit, nil)
	l := NewLog(1<<20, nil, "", memory)
	l.Write([]byte("0123456789"))
	if l.DropOutput() != 0 {
		t.Fatal("it still runs")
	}
	f := l.Follow(0, nil)
	l.End()
	if l.DropOutput() == 0 || l.Memory() != 0 || memory.Stats().Dropped != 10 {
		t.Fatalf("%+v", memory.Stats())
	}
	if total, kept := l.Total(); total != 10 || kept != 0 {
		t.Fatal(total, kept)
	}
	if data, from, end := l.Read(0, 10); len(data) != 0 || from != 10 || !end {
		t.Fatal(data, from, end)
	}
	for data, ok := f.Next(context.Background(), 10); ok; data, ok = f.Next(context.Background(), 10) {
		f.Advance(len(data))
	}
	if next, lost := f.Close(); next != 10 || lost != 10 {
		t.Fatal(next, lost)
	}
}

func TestLogsGoOnWithoutMemory(t *testing.T) {
	for name, withFile := range map[string]bool{"file": true, "memory": false} {
		t.Run(name, func(t *testing.T) {
			memory, _ := short(0)
			var spills *Spills
			if withFile {
				spills, _ = diskSpills(t)
			}
			l := NewLog(1<<20, spills, "log", memory)
			f := l.Follow(0, nil)
			want := make([]byte, 3<<20)
			random := rand.New(rand.NewPCG(1, 1))
			for i := range want {
				want[i] = byte(random.IntN(256))
			}
			go func() {
				defer l.End()
				for rest := want; len(rest) > 0; {
					n := min(len(rest), 1+random.IntN(65_000))
					l.Write(rest[:n])
					rest = rest[n:]
				}
			}()
			var got []byte
			for {
				data, ok := f.Next(context.Background(), 50_000)
				if !ok {
					break
				}
				got = append(got, data...)
				f.Advance(len(data))
				if l.Memory() > 3*chunkSize {
					t.Fatal(l.Memory())
				}
			}
			if _, lost := f.Close(); lost != 0 || !bytes.Equal(got, want) {
				t.Fatal(lost, len(got), prefix(got, want))
			}
		})
	}
}

func TestFilesOfEndedStreamsGoFirst(t *testing.T) {
	spills, _ := diskSpills(t)
	block := make([]byte, 1<<20)
	fill := func(name string, blocks int) *Log {
		l := NewLog(1<<20, spills, name, nil)
		for range blocks {
			l.Write(block)
		}
		return l
	}
	living := fill("living", 64)
	for i := range 8 {
		fill(fmt.Sprint("ended", i), 63).End()
		if _, kept := living.Total(); kept != MaxSpill {
			t.Fatal(kept)
		}
		if data, from, _ := living.Read(0, 10); len(data) != 10 || from != 0 {
			t.Fatalf("after %d the file of a running stream is gone: %d from %d", i, len(data), from)
		}
	}
}
