package serve

import (
	"encoding/binary"
	"os"
	"runtime"
	"strconv"
	"strings"

	"hermes-exec/runner/internal/bounded"
	"hermes-exec/runner/internal/budget"
	"hermes-exec/runner/internal/channel"
	"hermes-exec/runner/internal/slots"
)

type sandboxFacts struct {
	Runner struct {
		Version string `json:"version"`
		PID     int    `json:"pid"`
	} `json:"runner"`
	BootID       string      `json:"boot_id"`
	InputWindow  int         `json:"input_window"`
	OS           string      `json:"os"`
	Arch         string      `json:"arch"`
	Hostname     string      `json:"hostname"`
	UID          int         `json:"uid"`
	BaseDir      string      `json:"base_dir"`
	Isolation    any         `json:"isolation"`
	Memory       memoryFacts `json:"memory"`
	DiskFull     bool        `json:"disk_nearly_full"`
	Capabilities []string    `json:"capabilities"`
}

type memoryFacts struct {
	OOMKills   int64        `json:"oom_kills"`
	LimitBytes *int64       `json:"limit_bytes"`
	Runner     budget.Stats `json:"runner"`
}

// Facts returns the facts of READY and sandbox.info.
func (s *Server) Facts() any {
	f := sandboxFacts{
		BootID: s.bootID, InputWindow: channel.DefaultInputWindow,
		OS: runtime.GOOS, Arch: runtime.GOARCH, UID: os.Geteuid(),
		BaseDir: s.config.Base, DiskFull: !s.slots.DiskHasRoom(),
		Isolation: s.config.Isolation, Memory: readMemoryFacts(),
		Capabilities: []string{"pty", "sessions", "search", "connect", "spill", "checkpoints"},
	}
	f.Runner.Version, f.Runner.PID = s.config.Version, os.Getpid()
	f.Memory.Runner = s.memory.Stats()
	f.Hostname, _ = os.Hostname()
	return f
}

// Report returns the figures of the runner's memory, and the entries and bytes of the layers, as six
// numbers of 64 bits.
func (s *Server) Report() (report []byte) {
	memory, stored := s.memory.Stats(), slots.LayersSize(s.slots)
	figures := []int64{memory.Limit, memory.Used, memory.Peak, memory.Dropped, int64(stored.Entries), stored.Bytes}
	for _, n := range figures {
		report = binary.BigEndian.AppendUint64(report, uint64(max(0, n)))
	}
	return report
}

// unlimited is the value of cgroup v1, rounded down by page size, for no limit.
const unlimited = 1 << 62

func readMemoryFacts() memoryFacts {
	var f memoryFacts
	for _, try := range []struct{ events, limit string }{
		{"/sys/fs/cgroup/memory.events", "/sys/fs/cgroup/memory.max"},
		{"/sys/fs/cgroup/memory/memory.oom_control", "/sys/fs/cgroup/memory/memory.limit_in_bytes"},
	} {
		kills, ok := readCounter(try.events, "oom_kill")
		if !ok {
			continue
		}
		f.OOMKills = kills
		if text, err := bounded.ReadWhole(try.limit, bounded.SettingSize); err == nil {
			if n, err := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64); err == nil && n < unlimited {
				f.LimitBytes = &n
			}
		}
		break
	}
	return f
}

func readCounter(path, key string) (int64, bool) {
	text, err := bounded.ReadWhole(path, bounded.SettingSize)
	if err != nil {
		return 0, false
	}
	for line := range strings.Lines(string(text)) {
		name, value, _ := strings.Cut(strings.TrimSuffix(line, "\n"), " ")
		if n, err := strconv.ParseInt(value, 10, 64); err == nil && name == key {
			return n, true
		}
	}
	return 0, false
}
