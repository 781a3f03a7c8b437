package slots

import (
	"context"
	"os"
	"slices"
	"syscall"
	"testing"
	"time"

	"hermes-exec/runner/internal/link"
)

// BenchmarkNoop is one command through the agent, from the request until its
// exit is known; Bare is fork, exec and wait alone.
func BenchmarkNoop(b *testing.B) {
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		b.Fatal(err)
	}
	defer null.Close()
	fd := null.Fd()
	b.Run("bare", func(b *testing.B) {
		var times []time.Duration
		for range b.N {
			began := time.Now()
			pid, err := syscall.ForkExec("/bin/true", []string{"true"}, &syscall.ProcAttr{Files: []uintptr{fd, fd, fd}, Sys: &syscall.SysProcAttr{Setsid: true}})
			if err != nil {
				b.Fatal(err)
			}
			if _, err := syscall.Wait4(pid, nil, 0, nil); err != nil {
				b.Fatal(err)
			}
			times = append(times, time.Since(began))
		}
		report(b, times)
	})
	for _, level := range rungs() {
		b.Run(level, func(b *testing.B) {
			m, err := NewManager(passableDir(b), probed(), os.Args[0])
			if err != nil {
				b.Fatal(err)
			}
			defer m.Close(context.Background())
			exits := make(chan link.Exit, 1)
			m.OnExit(func(_ string, e link.Exit) { exits <- e })
			if _, err := m.Create(context.Background(), CreateParams{Slot: "a", Level: level, PrivateRoot: true, Network: true}); err != nil {
				b.Skip(err)
			}
			h, err := m.Agent(context.Background(), "a")
			if err != nil {
				b.Fatal(err)
			}
			var times []time.Duration
			for i := range b.N {
				began := time.Now()
				s := link.Spawn{Token: uint64(i + 1), Argv: []link.Bytes{"/bin/true"}, Cwd: h.Facts.Workspace, Env: []link.Bytes{"PATH=/usr/bin:/bin"}}
				var spawned link.Spawned
				if _, err := h.Call(context.Background(), link.OpSpawn, s, &spawned, int(fd), int(fd), int(fd)); err != nil {
					b.Fatal(err)
				}
				<-exits
				times = append(times, time.Since(began))
			}
			report(b, times)
		})
	}
}

func report(b *testing.B, times []time.Duration) {
	slices.Sort(times)
	b.ReportMetric(float64(times[len(times)/2].Microseconds()), "p50-us")
	b.ReportMetric(float64(times[len(times)*95/100].Microseconds()), "p95-us")
}

// BenchmarkReset is a slot in use, its reset and the start of its next agent.
func BenchmarkReset(b *testing.B) {
	for _, level := range rungs() {
		b.Run(level, func(b *testing.B) {
			m, err := NewManager(passableDir(b), probed(), os.Args[0])
			if err != nil {
				b.Fatal(err)
			}
			defer m.Close(context.Background())
			if _, err := m.Create(context.Background(), CreateParams{Slot: "a", Level: level, PrivateRoot: true, Network: true}); err != nil {
				b.Skip(err)
			}
			var starts, resets []time.Duration
			for range b.N {
				began := time.Now()
				if _, err := m.Agent(context.Background(), "a"); err != nil {
					b.Fatal(err)
				}
				starts = append(starts, time.Since(began))
				began = time.Now()
				if r, err := m.Reset(context.Background(), "a"); err != nil || !r.Clean {
					b.Fatal(r, err)
				}
				resets = append(resets, time.Since(began))
			}
			slices.Sort(starts)
			report(b, resets)
			b.ReportMetric(float64(starts[len(starts)/2].Microseconds()), "start-us")
		})
	}
}
