package ipc

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"reflect"
	"syscall"
	"testing"
)

func message(k kind, op string, body []byte) []byte {
	m := make([]byte, headerSize)
	binary.BigEndian.PutUint32(m, uint32(len(op)+len(body)))
	m[4], m[6] = byte(k), byte(len(op))
	return append(append(m, op...), body...)
}

func FuzzReceive(f *testing.F) {
	f.Add(append(message(kindRequest, OpSpawn, []byte(`{"token":1}`)), message(kindCancel, "", nil)...))
	f.Add(message(kindReply, "", []byte(`{"kind":"os"}`)))
	f.Add([]byte{0xff, 0xff, 0xff, 0xff, 1, 200, 200, 1, 0, 0, 0, 0, 0, 0, 0, 0})
	f.Fuzz(func(t *testing.T, input []byte) {
		if len(input) > 32<<10 {
			return // more than the socket takes at once
		}
		ours, theirs, err := Pair()
		if err != nil {
			t.Fatal(err)
		}
		defer theirs.Close()
		c, err := New(ours)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		if _, err := theirs.Write(input); err != nil {
			t.Fatal(err)
		}
		if err := syscall.Shutdown(int(theirs.Fd()), syscall.SHUT_WR); err != nil {
			t.Fatal(err)
		}
		var got []byte
		for {
			m, err := c.receive()
			if err != nil {
				break
			}
			if len(m.FDs) > 0 {
				t.Fatal("descriptors from nowhere")
			}
			got = append(got, m.op...)
			got = append(got, m.Body...)
		}
		if len(got) > len(input) || len(got) > 0 && !bytes.Contains(input, got[:1]) {
			t.Fatal("more was read than was written")
		}
	})
}

// Short messages travel packed, and come back from it as they were.
func FuzzUnpack(f *testing.F) {
	for _, m := range []packable{
		Spawn{Token: 7, Argv: []Bytes{"sh", ""}, Env: []Bytes{"A=\xfe"}, Cwd: "/w", HoldMS: 2, PTY: &PTY{24, 80}},
		SpawnResult{Started: true, PID: 5, Exit: &Exit{Token: 1, ExitCode: 137, UserS: 0.25, Cwd: "/a"}},
		SpawnResult{ExitCode: 127, Reason: "no"},
	} {
		f.Add(m.pack(nil))
	}
	f.Add([]byte{1, 0xff, 0xff, 0xff, 0xff, 0x7f})
	f.Fuzz(func(t *testing.T, body []byte) {
		for _, out := range []any{&Spawn{}, &SpawnResult{}, &Exit{}} {
			if Decode(body, out) != nil {
				continue
			}
			again, err := encode(reflect.ValueOf(out).Elem().Interface())
			if err != nil {
				t.Fatal(err)
			}
			other := reflect.New(reflect.TypeOf(out).Elem())
			if err := Decode(again, other.Interface()); err != nil {
				t.Fatalf("%+v packed: %v", out, err)
			}
			if first, second := fmt.Sprintf("%+v", out),
				fmt.Sprintf("%+v", other.Interface()); len(first) != len(second) {
				t.Fatalf("%s became %s", first, second)
			}
		}
	})
}
