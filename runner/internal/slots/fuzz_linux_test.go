package slots

import (
	"encoding/json"
	"testing"
)

func FuzzCreateParams(f *testing.F) {
	f.Add([]byte(`{"slot":"s0","level":"auto","floor":"none","network":true,"limits":{"cpus":0.5,"pids":10},"env":{"A":{"b64":"/w=="}},"readonly_paths":["/x"]}`))
	f.Add([]byte(`{"slot":"../s","level":"best","limits":{"memory_mb":-1}}`))
	f.Fuzz(func(t *testing.T, raw []byte) {
		var p CreateParams
		if json.Unmarshal(raw, &p) != nil || p.check() != nil {
			return
		}
		if !IsID(p.Slot) || len(p.Slot) > 64 {
			t.Fatalf("slot %q", p.Slot)
		}
		for _, n := range []*int64{p.Limits.MemoryMB, p.Limits.PIDs, p.Limits.DiskMB, p.Limits.OpenFiles,
			p.Limits.FileSizeMB} {
			if n != nil && *n <= 0 {
				t.Fatalf("limit %d", *n)
			}
		}
	})
}
