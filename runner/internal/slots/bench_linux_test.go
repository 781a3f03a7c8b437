package slots

import (
	"context"
	"fmt"
	"os"
	"slices"
	"syscall"
	"testing"
	"time"

	"hermes-exec/runner/internal/ipc"
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
			pid, err := syscall.ForkExec("/bin/true", []string{"true"},
				&syscall.ProcAttr{Files: []uintptr{fd, fd, fd}, Sys: &syscall.SysProcAttr{Setsid: true}})
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
	for _, level := range levels() {
		b.Run(level, func(b *testing.B) {
			m, err := NewManager(passableDir(b), probed(), os.Args[0])
			if err != nil {
				b.Fatal(err)
			}
			defer m.Close(context.Background())
			exits := make(chan ipc.Exit, 1)
			m.OnExit(func(_ string, e ipc.Exit) { exits <- e })
			if _, err := m.Create(context.Background(),
				CreateParams{Slot: "a", Level: level, PrivateRoot: true, Network: true}); err != nil {
				b.Skip(err)
			}
			h, err := m.Agent(context.Background(), "a")
			if err != nil {
				b.Fatal(err)
			}
			var times []time.Duration
			for i := range b.N {
				began := time.Now()
				s := ipc.Spawn{Token: uint64(i + 1), Argv: []ipc.Bytes{"/bin/true"}, Cwd: ipc.Bytes(h.Workdir()),
					Env: []ipc.Bytes{"PATH=/usr/bin:/bin"}}
				var spawned ipc.SpawnResult
				if _, err := h.Call(context.Background(), ipc.OpSpawn, s, &spawned, int(fd), int(fd),
					int(fd)); err != nil {
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
	for _, level := range levels() {
		for _, files := range []int{0, 1000} {
			b.Run(fmt.Sprintf("%s/%dfiles", level, files), func(b *testing.B) { benchReset(b, level, files) })
		}
	}
}

func benchReset(b *testing.B, level string, files int) {
	m, err := NewManager(passableDir(b), probed(), os.Args[0])
	if err != nil {
		b.Fatal(err)
	}
	defer m.Close(context.Background())
	if _, err := m.Create(context.Background(),
		CreateParams{Slot: "a", Level: level, PrivateRoot: true, Network: true}); err != nil {
		b.Skip(err)
	}
	var starts, resets []time.Duration
	var cpu time.Duration
	for range b.N {
		began := time.Now()
		if _, err := m.Agent(context.Background(), "a"); err != nil {
			b.Fatal(err)
		}
		starts = append(starts, time.Since(began))
		fill(b, m.base+"/slots/a/workspace", files)
		used := cpuTime(b)
		began = time.Now()
		if r, err := m.Reset(context.Background(), "a"); err != nil || !r.Clean {
			b.Fatal(r, err)
		}
		resets = append(resets, time.Since(began))
		cpu += cpuTime(b) - used
	}
	slices.Sort(starts)
	report(b, resets)
	b.ReportMetric(float64(resets[0].Microseconds()), "min-us")
	b.ReportMetric(float64(cpu.Microseconds())/float64(b.N), "cpu-us")
	b.ReportMetric(float64(starts[len(starts)/2].Microseconds()), "start-us")
}

// fill makes files of 1 KiB, twenty to a directory.
func fill(b *testing.B, dir string, files int) {
	content := make([]byte, 1024)
	for i := range files {
		directory := fmt.Sprintf("%s/%d", dir, i/20)
		if i%20 == 0 {
			if err := os.Mkdir(directory, 0o755); err != nil {
				b.Fatal(err)
			}
		}
		if err := os.WriteFile(fmt.Sprintf("%s/%d", directory, i), content, 0o644); err != nil {
			b.Fatal(err)
		}
	}
}

// cpuTime returns the processor time of this process and the children that it has waited for.
func cpuTime(b *testing.B) (total time.Duration) {
	for _, who := range []int{syscall.RUSAGE_SELF, syscall.RUSAGE_CHILDREN} {
		var u syscall.Rusage
		if err := syscall.Getrusage(who, &u); err != nil {
			b.Fatal(err)
		}
		total += time.Duration(u.Utime.Nano() + u.Stime.Nano())
	}
	return total
}
