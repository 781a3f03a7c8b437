package proc

import "testing"

func TestParseStat(t *testing.T) {
	const line = "123 (a) b ( c\n) R 1 120 119 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 98765 1000 42 18446744073709551615"
	p, ok := ParseStat([]byte(line))
	if !ok || p.PID != 123 || p.Parent != 1 || p.Group != 120 || p.Session != 119 || p.Start != 98765 ||
		p.State != 'R' || p.RSSPages != 42 || p.Kernel {
		t.Errorf("%+v %v", p, ok)
	}
	for _, bad := range []string{"", "1", "1 (x", "1 (x) R 1"} {
		if _, ok := ParseStat([]byte(bad)); ok {
			t.Errorf("%q was taken", bad)
		}
	}
	const zombie = "5 (z) Z 1 5 5 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 98765 0 0 0"
	if _, ok := ParseStat([]byte(zombie)); ok {
		t.Error("a zombie lives")
	}
	const headless = "5 (z) Z 1 5 5 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 3 0 98765 0 0 0"
	if _, ok := ParseStat([]byte(headless)); !ok {
		t.Error("threads outlive the first of them")
	}
}

func TestParseStatus(t *testing.T) {
	var p Process
	if !p.ParseStatus([]byte("Name:\tx\nUid:\t1\t2\t3\t4\nGid:\t0\t0\t0\t0\nFDSize:\t64\nGroups:\t7 4294967290 " +
		"\nNStgid:\t1\n")) {
		t.Fatal("refused")
	}
	if p.UIDs != [3]uint32{1, 2, 3} || len(p.Groups) != 2 || p.Groups[1] != 4294967290 {
		t.Errorf("%+v", p)
	}
	if p.ParseStatus(nil) {
		t.Error("an ended process has no credentials")
	}
}

// The name that a tenant gives its processes is part of these.
func FuzzProc(f *testing.F) {
	f.Add([]byte("12 (a) b) S 1 12 12 0 -1 4194304 1 0 0 0 5 6 0 0 20 0 1 0 99 4096 7 18446744073709551615 0"))
	f.Add([]byte("Name:\tx\nUid:\t0\t1\t2\t3\nGroups:\t4 5 \n"))
	f.Add([]byte("12 ("))
	f.Add([]byte(") 12"))
	f.Fuzz(func(t *testing.T, input []byte) {
		_, _ = ParseStat(input)
		var p Process
		_ = p.ParseStatus(input)
	})
}
