package cgroup

import "testing"

func FuzzCounters(f *testing.F) {
	f.Add([]byte("oom_kill_disable 0\nunder_oom 0\noom_kill 3\n"))
	f.Add([]byte("oom_kill -9999999999999999999"))
	f.Fuzz(func(t *testing.T, input []byte) { _, _ = oomLine(input) })
}
