package ipc

import (
	"reflect"
	"testing"
)

func TestPackedMessagesComeBack(t *testing.T) {
	exit := Exit{Token: 1 << 63, ExitCode: 137, Signal: 9, OOMKilled: true, UserS: 0.25, SystemS: 1e-6, MaxRSS: 7 << 30,
		Cwd: "/a\xff"}
	for _, c := range []struct{ in, out any }{
		{Spawn{Token: 7, Argv: []Bytes{"sh", "-c", ""}, Env: []Bytes{"A=\xfe\n", "B="}, Cwd: "/w", User: "me",
			HoldMS: 2, PTY: &PTY{24, 80}}, &Spawn{}},
		{Spawn{Argv: []Bytes{"x"}, Env: []Bytes{}}, &Spawn{}},
		{SpawnResult{Started: true, PID: 5, RanS: 0.001, Exit: &exit}, &SpawnResult{}},
		{SpawnResult{ExitCode: 127, Reason: "not found"}, &SpawnResult{}},
		{exit, &Exit{}},
		{Exit{ExitCode: -1}, &Exit{}},
	} {
		body, err := encode(c.in)
		if err != nil {
			t.Fatal(err)
		}
		if err := Decode(body, c.out); err != nil ||
			!reflect.DeepEqual(reflect.ValueOf(c.out).Elem().Interface(), c.in) {
			t.Errorf("%+v became %+v: %v", c.in, c.out, err)
		}
		for cut := range body {
			if err := Decode(body[:cut], reflect.New(reflect.TypeOf(c.in)).Interface()); err == nil {
				t.Errorf("the first %d bytes of %+v are taken for a whole", cut, c.in)
			}
		}
		if err := Decode(append(body, 0), reflect.New(reflect.TypeOf(c.in)).Interface()); err == nil {
			t.Errorf("%+v with a byte more is taken for a whole", c.in)
		}
	}
}

func TestACountBeyondTheMessageIsRefused(t *testing.T) {
	body := append([]byte{1}, 0xff, 0xff, 0xff, 0xff, 0x7f) // token, then a list of 2^35 items
	if err := Decode(body, &Spawn{}); err == nil {
		t.Fatal("accepted")
	}
}
