package cgroup

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"hermes-exec/runner/internal/ipc"
)

func TestOOMCounterOfThisSystem(t *testing.T) {
	f := SandboxOOMFile()
	if f == nil {
		t.Skip("no counter can be read here")
	}
	defer f.Close()
	if count, ok := ReadOOM(f); !ok || count < 0 {
		t.Error(count, ok)
	}
}

func TestGroupsAreMadeAndRemoved(t *testing.T) {
	version, groups := Probe()
	if version == "none" {
		t.Skip("no cgroup can be made here")
	}
	memory, pids := int64(64), int64(50)
	joins, how, err := Make(groups, "hermes-exec-test", ipc.Limits{MemoryMB: &memory, PIDs: &pids})
	if err != nil || len(how) != 2 {
		t.Fatal(how, err)
	}
	for _, j := range joins {
		if _, err := os.Stat(j.Dir); err != nil {
			t.Error(err)
		}
	}
	if err := Remove(joins); err != nil {
		t.Error(err)
	}
	for _, j := range joins {
		if _, err := os.Stat(j.Dir); err == nil {
			t.Errorf("%s is left", j.Dir)
		}
	}
}

func TestTheLimitOnProcessorTimeIsLiftedAndPutBack(t *testing.T) {
	_, groups := Probe()
	cpus := 0.25
	joins, how, err := Make(groups, "hermes-exec-test-cpu", ipc.Limits{CPUs: &cpus})
	if err != nil {
		t.Fatal(err)
	}
	if how["cpus"] == "" {
		t.Skip("no cgroup can be made here that holds the processors")
	}
	defer func() {
		if err := Remove(joins); err != nil {
			t.Error(err)
		}
	}()
	limit := func() string {
		file := map[bool]string{false: "cpu.cfs_quota_us", true: "cpu.max"}[joins[0].V2]
		data, err := os.ReadFile(filepath.Join(joins[0].Dir, file))
		if err != nil {
			t.Fatal(err)
		}
		return strings.Fields(string(data))[0]
	}
	if limit() != "25000" {
		t.Fatal(limit())
	}
	restore := LiftCPU(joins)
	if got := limit(); got != "-1" && got != "max" {
		t.Error(got)
	}
	if err := restore(); err != nil || limit() != "25000" {
		t.Error(limit(), err)
	}
	// One that has no limit keeps none.
	if err := errors.Join(LiftCPU(nil)(), LiftCPU([]Join{{Controller: "cpu", Dir: t.TempDir()}})()); err != nil {
		t.Error(err)
	}
}
