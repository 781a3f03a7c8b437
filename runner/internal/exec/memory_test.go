package exec

import (
	"os"
	"path/filepath"
	"testing"

	"hermes-exec/runner/internal/budget"
	"hermes-exec/runner/internal/output"
)

// printer is a process of the slot that has printed size bytes.
func printer(t *testing.T, r *Runner, slot *Slot, id string, size int, over bool) *process {
	t.Helper()
	p := &process{id: id, slot: slot, unbind: func() bool { return false }}
	for stream := output.Stdout; stream <= output.Stderr; stream++ {
		p.logs[stream] = output.NewLog(1<<20, slot.spills, id, r.Memory)
	}
	r.mu.Lock()
	r.processes[id] = p
	r.mu.Unlock()
	p.logs[output.Stdout].Write(make([]byte, size))
	if over {
		p.logs[output.Stdout].End()
		p.logs[output.Stderr].End()
		p.keep(r)
	}
	return p
}

func kept(p *process) int64 {
	_, kept := p.logs[output.Stdout].Total()
	return kept
}

func TestANeighboursFloodTakesNoFreshOutput(t *testing.T) {
	r := &Runner{Memory: budget.New(budget.Least, nil), states: map[string]*Slot{}, processes: map[string]*process{}}
	r.Memory.OnPressure(r.freeMemory)
	dir := t.TempDir()
	spills := &output.Spills{Remove: func(string) {}, Open: func(name string) (*os.File, string, error) {
		file, err := os.CreateTemp(dir, "")
		return file, filepath.Join(dir, name), err
	}}
	flooder, quiet := &Slot{id: "a", ctx: t.Context()}, &Slot{id: "b", ctx: t.Context(), spills: spills}
	r.states["a"], r.states["b"] = flooder, quiet
	fresh := printer(t, r, quiet, "fresh", 28_000, true)
	old, newest := printer(t, r, flooder, "old", 200_000, true), printer(t, r, flooder, "newest", 200_000, true)

	withFile := printer(t, r, quiet, "file", 600_000, false)
	if freed := r.freeMemory(1); freed == 0 || withFile.Memory() != 0 || kept(withFile) != 600_000 ||
		kept(fresh) != 28_000 || kept(old) != 200_000 {
		t.Fatal("something was lost though a file had enough", freed, kept(withFile), kept(fresh), kept(old))
	}
	for i := range 20 {
		printer(t, r, flooder, string(rune('0'+i)), 250_000, false)
	}
	if use := r.Memory.Stats(); use.Dropped != 200_000 || kept(old) != 0 || kept(newest) != 200_000 ||
		kept(fresh) != 28_000 {
		t.Fatal(use, kept(old), kept(newest), kept(fresh))
	}
}
