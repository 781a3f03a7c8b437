package process

import (
	"os"
	"path/filepath"
	"testing"

	"hermes-exec/runner/internal/budget"
	"hermes-exec/runner/internal/command"
	"hermes-exec/runner/internal/output"
)

// printer is a process of the slot that has printed size bytes.
func printer(t *testing.T, r *Registry, scope *command.Scope, id string, size int, over bool) *process {
	t.Helper()
	p := &process{id: id, scope: scope, keepLogs: func() bool { return false }}
	for stream := output.Stdout; stream <= output.Stderr; stream++ {
		p.logs[stream] = output.NewLog(1<<20, scope.Spills, id, r.memory)
	}
	r.mu.Lock()
	r.all[id] = p
	r.mu.Unlock()
	p.logs[output.Stdout].Write(make([]byte, size))
	if over {
		p.logs[output.Stdout].End()
		p.logs[output.Stderr].End()
		p.keep(r)
	}
	return p
}

func memoryOf(p *process) int64 {
	_, kept := p.logs[output.Stdout].Total()
	return kept
}

func TestANeighboursFloodTakesNoFreshOutput(t *testing.T) {
	r := NewRegistry(budget.New(budget.MinLimit, nil), nil)
	free := func(need int64) int64 { return r.FreeMemory(need, 2) }
	r.memory.OnPressure(free)
	dir := t.TempDir()
	spills := &output.Spills{Remove: func(string) {}, Open: func(name string) (*os.File, string, error) {
		file, err := os.CreateTemp(dir, "")
		return file, filepath.Join(dir, name), err
	}}
	flooder := command.NewScope(t.Context(), "a", nil, nil)
	quiet := command.NewScope(t.Context(), "b", nil, nil)
	flooder.Spills, quiet.Spills = nil, spills
	fresh := printer(t, r, quiet, "fresh", 28_000, true)
	old, newest := printer(t, r, flooder, "old", 200_000, true), printer(t, r, flooder, "newest", 200_000, true)

	withFile := printer(t, r, quiet, "file", 600_000, false)
	if freed := free(1); freed == 0 || withFile.Memory() != 0 || memoryOf(withFile) != 600_000 ||
		memoryOf(fresh) != 28_000 || memoryOf(old) != 200_000 {
		t.Fatal("something was lost though a file had enough", freed, memoryOf(withFile), memoryOf(fresh), memoryOf(old))
	}
	for i := range 20 {
		printer(t, r, flooder, string(rune('0'+i)), 250_000, false)
	}
	if use := r.memory.Stats(); use.Dropped != 200_000 || memoryOf(old) != 0 || memoryOf(newest) != 200_000 ||
		memoryOf(fresh) != 28_000 {
		t.Fatal(use, memoryOf(old), memoryOf(newest), memoryOf(fresh))
	}
}
