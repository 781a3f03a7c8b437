package output

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"
	"time"
)

func join(parts [][]byte) string { return string(bytes.Join(parts, nil)) }

func mergeOutput(r Result) string {
	var out []byte
	r.EachMerged(func(part []byte) { out = append(out, part...) })
	return string(out)
}

// model returns the bytes that a bounded stream must keep.
func model(all []byte, limit int) string {
	if len(all) <= limit {
		return string(all)
	}
	head := limit * 2 / 5
	return string(all[:head]) + string(all[len(all)-(limit-head):])
}

func diskSpills(t *testing.T) (*Spills, string) {
	dir := t.TempDir()
	return &Spills{
		Open: func(name string) (*os.File, string, error) {
			f, err := os.OpenFile(filepath.Join(dir, name), os.O_CREATE|os.O_EXCL|os.O_RDWR, 0o600)
			return f, filepath.Join(dir, name), err
		},
		Remove: func(path string) { _ = os.Remove(path) },
	}, dir
}

func TestCollectorAgainstAModel(t *testing.T) {
	for seed := range uint64(400) {
		random := rand.New(rand.NewPCG(seed, 1))
		limit := []int{0, 1, 2, 5, 10, 100, 1000}[random.IntN(7)]
		spills, _ := diskSpills(t)
		c := NewCollector(limit, spills, "x", nil)
		var all [4][]byte
		streams := 1 + random.IntN(2)
		for range random.IntN(40) {
			stream := 1 + random.IntN(streams)
			p := make([]byte, random.IntN(1+limit*3/2+3))
			for i := range p {
				p[i] = byte(random.IntN(256))
			}
			c.Write(stream, p)
			all[stream] = append(all[stream], p...)
			all[Merged] = append(all[Merged], p...)
		}
		r := c.Finish()
		where := fmt.Sprintf("seed %d limit %d", seed, limit)
		for stream, got := range map[int]struct {
			kept  Counts
			parts [][]byte
			spill string
		}{Stdout: {r.Stdout, r.StdoutParts, r.StdoutSpill}, Stderr: {r.Stderr, r.StderrParts, r.StderrSpill}} {
			want := model(all[stream], limit)
			if join(got.parts) != want || got.kept.Total != int64(len(all[stream])) ||
				got.kept.Head+got.kept.Tail != int64(len(want)) {
				t.Fatalf("%s: stream %d: %+v, %d bytes, expected %d", where, stream, got.kept, len(join(got.parts)),
					len(want))
			}
			if (len(all[stream]) > limit) != (got.spill != "") {
				t.Fatalf("%s: spill %q of %d bytes", where, got.spill, len(all[stream]))
			}
			if got.spill != "" {
				if content, err := os.ReadFile(got.spill); err != nil || !bytes.Equal(content, all[stream]) {
					t.Fatalf("%s: the spill file differs: %v", where, err)
				}
			}
		}
		if merged := assemble(t, r); merged != model(all[Merged], limit) || r.Merged.Total != int64(len(all[Merged])) {
			t.Fatalf("%s: merged is %d bytes, %+v", where, len(merged), r.Merged)
		}
	}
}

// assemble merges the streams as a driver does.
func assemble(t *testing.T, r Result) string {
	if r.Segments == nil {
		return mergeOutput(r)
	}
	rest := map[int64]string{Stdout: join(r.StdoutParts), Stderr: join(r.StderrParts)}
	out := ""
	for _, s := range r.Segments {
		if int64(len(rest[s[0]])) < s[1] {
			t.Fatalf("segment %v is longer than its stream", s)
		}
		out += rest[s[0]][:s[1]]
		rest[s[0]] = rest[s[0]][s[1]:]
	}
	return out
}

func TestManySegmentsAreSentAsBytes(t *testing.T) {
	c := NewCollector(1<<20, nil, "", nil)
	want := ""
	for i := range 3 * maxSegments {
		p := fmt.Sprint(i)
		c.Write(1+i%2, []byte(p))
		want += p
	}
	r := c.Finish()
	if r.Segments != nil || mergeOutput(r) != want {
		t.Fatalf("%d segments, %d bytes", len(r.Segments), len(mergeOutput(r)))
	}
}

func TestSpillsOfASlotAreBounded(t *testing.T) {
	spills, dir := diskSpills(t)
	block := make([]byte, 1<<20)
	var paths []string
	for i := range 6 {
		c := NewCollector(10, spills, fmt.Sprint(i), nil)
		for range 70 {
			c.Write(Stdout, block)
		}
		paths = append(paths, c.Finish().StdoutSpill)
	}
	total := int64(0)
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		info, err := e.Info()
		if err != nil {
			t.Fatal(err)
		}
		if info.Size() > MaxSpill {
			t.Errorf("%s has %d bytes", e.Name(), info.Size())
		}
		total += info.Size()
	}
	if total > MaxSlotSpill || len(entries) != 4 {
		t.Fatalf("%d bytes in %d files", total, len(entries))
	}
	for i, path := range paths {
		if _, err := os.Stat(path); (err == nil) != (i >= 2) {
			t.Errorf("file %d: %v", i, err)
		}
	}
}

func TestSpillWithoutRoom(t *testing.T) {
	removed := ""
	cases := map[string]*Spills{
		"cannot open": {Open: func(string) (*os.File, string, error) { return nil, "", errors.New("no room") },
			Remove: func(string) {}},
		"cannot write": {Open: func(string) (*os.File, string, error) {
			f, err := os.Open(os.DevNull) // for reading only
			return f, "/the/file", err
		}, Remove: func(path string) { removed = path }},
	}
	for name, spills := range cases {
		t.Run(name, func(t *testing.T) {
			c := NewCollector(10, spills, "x", nil)
			for range 5 {
				c.Write(Stdout, []byte("0123456789"))
			}
			if r := c.Finish(); r.StdoutSpill != "" || r.Stdout.Total != 50 || join(r.StdoutParts) != "0123456789" {
				t.Fatalf("%+v", r)
			}
		})
	}
	if removed != "/the/file" {
		t.Fatal("the file that could not be written was left")
	}
}

func TestLogAgainstAModel(t *testing.T) {
	for name, withFile := range map[string]bool{"memory": false, "file": true} {
		t.Run(name, func(t *testing.T) {
			var spills *Spills
			if withFile {
				spills, _ = diskSpills(t)
			}
			const limit = 100 << 10
			l := NewLog(limit, spills, "log", nil)
			random := rand.New(rand.NewPCG(7, 7))
			var all []byte
			for range 300 {
				p := make([]byte, random.IntN(8<<10))
				for i := range p {
					p[i] = byte(random.IntN(256))
				}
				l.Write(p)
				all = append(all, p...)
				offset := random.Int64N(int64(len(all)) + 10)
				data, from, _ := l.Read(offset, 5000)
				if from > offset && withFile && offset <= int64(len(all)) {
					t.Fatalf("%d was lost although there is a file", offset)
				}
				if from >= 0 && !bytes.Equal(data, all[from:from+int64(len(data))]) {
					t.Fatalf("wrong bytes at %d", from)
				}
				tail, _, _ := l.Read(-limit, limit)
				if len(all) >= limit && len(tail) == 0 {
					t.Fatal("the last bytes are not kept")
				}
			}
			l.End()
			data, from, end := l.Read(-10, 100)
			if !end || from != int64(len(all)-10) || !bytes.Equal(data, all[len(all)-10:]) {
				t.Fatalf("%d %v", from, end)
			}
			if _, kept := l.Total(); kept < limit {
				t.Fatalf("%d bytes are kept", kept)
			}
		})
	}
}

func TestLogSurvivesATruncatedFile(t *testing.T) {
	spills, dir := diskSpills(t)
	l := NewLog(1<<20, spills, "log", nil)
	for range 100 {
		l.Write(make([]byte, 10<<10))
	}
	if err := os.Truncate(filepath.Join(dir, "log"), 0); err != nil {
		t.Fatal(err)
	}
	data, from, _ := l.Read(0, 1000)
	if from == 0 || len(data) != 1000 {
		t.Fatalf("%d bytes at %d", len(data), from)
	}
}

func TestFollowerHoldsTheWriter(t *testing.T) {
	l := NewLog(minLog, nil, "", nil)
	l.Write([]byte("early"))
	f := l.Follow(2, nil)
	written := make(chan struct{})
	content := bytes.Repeat([]byte("0123456789"), 10<<10)
	go func() {
		defer close(written)
		l.Write(content)
		l.End()
	}()
	select {
	case <-written:
		t.Fatal("the writer did not wait")
	case <-time.After(30 * time.Millisecond):
	}
	var got []byte
	for {
		data, ok := f.Next(context.Background(), 1000)
		if !ok {
			break
		}
		got = append(got, data...)
		f.Advance(len(data))
	}
	<-written
	if next, lost := f.Close(); string(got) != "rly"+string(content) || lost != 0 || next != int64(5+len(content)) {
		t.Fatalf("%d bytes, next %d, lost %d", len(got), next, lost)
	}
	l.Write([]byte("more")) // nobody follows: nothing waits
	late := l.Follow(0, nil)
	if _, ok := late.Next(context.Background(), 10); !ok {
		t.Fatal("nothing to read")
	}
	if _, lost := late.Close(); lost == 0 {
		t.Fatal("a late follower has missed something")
	}
}

func TestFollowerEndsWithItsContextAndWithTheLog(t *testing.T) {
	l := NewLog(minLog, nil, "", nil)
	ctx, cancel := context.WithCancel(context.Background())
	f := l.Follow(0, nil)
	time.AfterFunc(10*time.Millisecond, cancel)
	if _, ok := f.Next(ctx, 10); ok {
		t.Fatal("data from nowhere")
	}
	time.AfterFunc(10*time.Millisecond, l.Close)
	if _, ok := f.Next(context.Background(), 10); ok {
		t.Fatal("data from nowhere")
	}
	l.Write([]byte("after")) // returns
}

func TestFollowerGivesShortMessagesWhole(t *testing.T) {
	l, end := NewLog(minLog, nil, "", nil), byte(0)
	f := l.Follow(0, &end)
	next := func(ctx context.Context) string {
		data, _ := f.Next(ctx, 1<<20)
		f.Advance(len(data))
		return string(data)
	}
	l.Write([]byte("one message"))
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Millisecond)
	defer cancel()
	if got := next(ctx); got != "" {
		t.Fatalf("%q before its end", got)
	}
	l.Write([]byte{end})
	if got := next(context.Background()); got != "one message\x00" {
		t.Fatalf("%q", got)
	}
	long, got := string(bytes.Repeat([]byte("x"), 10*minLog)), ""
	go func() {
		l.Write([]byte(long + "\x00the last"))
		l.End()
	}()
	for piece := next(context.Background()); piece != ""; piece = next(context.Background()) {
		got += piece
	}
	if got != long+"\x00the last" {
		t.Fatalf("%d bytes", len(got))
	}
}

func TestOrderOverTheBordersOfChunks(t *testing.T) {
	c := NewCollector(1<<20, nil, "x", nil)
	var want [3][]byte
	streams := []int{Stdout, Stderr, Stdout, Stdout, Stderr}
	for i, size := range []int{chunkSize - 1, 2, 3 * chunkSize, 1, chunkSize} {
		p := bytes.Repeat([]byte{byte('a' + i)}, size)
		c.Write(streams[i], p)
		want[streams[i]] = append(want[streams[i]], p...)
	}
	r := c.Finish()
	if join(r.StdoutParts) != string(want[Stdout]) || join(r.StderrParts) != string(want[Stderr]) {
		t.Fatal(len(join(r.StdoutParts)), len(join(r.StderrParts)))
	}
	if got := fmt.Sprint(r.Segments); got != fmt.Sprintf("[[1 %d] [2 2] [1 %d] [2 %d]]", chunkSize-1, 3*chunkSize+1,
		chunkSize) {
		t.Fatal(got)
	}
}
