package memory

import (
	"fmt"
	"os"
	"testing"

	"hermes-exec/runner/internal/ipc"
	"hermes-exec/runner/internal/proc"
)

func TestWhichCommandHasLostAProcessForWantOfMemory(t *testing.T) {
	counter, err := os.Create(t.TempDir() + "/events")
	if err != nil {
		t.Fatal(err)
	}
	defer counter.Close()
	count := func(kills int) {
		if _, err := counter.WriteAt(fmt.Appendf(nil, "oom_kill %d\n", kills), 0); err != nil {
			t.Fatal(err)
		}
	}
	const half = 1 << 40
	killed := ipc.Exit{ExitCode: 137, Signal: 9}
	for name, c := range map[string]struct {
		own         bool
		kills       int
		exit        ipc.Exit
		byUs, alone bool
		want        bool
	}{
		"itself":                            {false, 1, killed, false, false, true},
		"killed, and memory was there":      {true, 0, killed, false, true, false},
		"killed by us":                      {false, 1, killed, true, false, false},
		"the largest part":                  {false, 1, ipc.Exit{MaxRSS: half + 1}, false, false, true},
		"a part, nobody else ran":           {true, 1, ipc.Exit{}, false, true, true},
		"a part of somebody":                {true, 1, ipc.Exit{}, false, false, false},
		"a part of any slot of the sandbox": {false, 1, ipc.Exit{}, false, true, false},
	} {
		count(5)
		l := &OOMCounter{counter: counter, own: c.own, half: half}
		m := l.Mark()
		count(5 + c.kills)
		if got := l.IsOutOfMemory(m, c.exit, c.byUs, c.alone); got != c.want {
			t.Errorf("%s: %v", name, got)
		}
	}
	// A killed process that is part of no command is no loss of the command.
	count(5)
	l := &OOMCounter{counter: counter, own: true, half: half}
	m := l.Mark()
	count(6)
	l.CountOther()
	if l.IsOutOfMemory(m, ipc.Exit{}, false, true) {
		t.Error("a command is blamed for what others had left")
	}
}

func TestTheLargestIsOverALimit(t *testing.T) {
	self := proc.Process{PID: os.Getpid()}
	all := map[int]proc.Process{self.PID: self}
	if largest, over := LargestOverLimit(1, all); !over || largest.PID != self.PID {
		t.Errorf("%+v %v", largest, over)
	}
	if _, over := LargestOverLimit(1<<50, all); over {
		t.Error("nobody has so much")
	}
	if _, over := LargestOverLimit(0, nil); over {
		t.Error("nobody is there")
	}
}
