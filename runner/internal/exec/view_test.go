package exec_test

import (
	"testing"
	"time"

	"hermes-exec/runner/internal/testdriver"
)

func TestView(t *testing.T) {
	_, d := testdriver.Open(t)
	d.Slot("s")
	d.Slot("other")
	d.Sh("s", "echo before")
	k, second := d.Look("s", 1<<20), d.Look("s", 1<<20)
	d.Sh("other", "echo not yours")
	d.Sh("s", "echo out; echo err >&2; exit 3")
	id, _ := d.Spawn(testdriver.Shell("s", "echo later"))
	d.Wait(id)
	k.Until("both ends", func() bool { return k.CountEvents("ended") == 2 })
	if out, err := k.Output(1), k.Output(2); out != "out\nlater\n" || err != "err\n" {
		t.Fatalf("%q %q", out, err)
	}
	if first := k.Events[1]; first["event"] != "started" || first["command"] != "echo out; echo err >&2; exit 3" ||
		first["pid"].(float64) <= 0 {
		t.Fatalf("%v", first)
	}
	k.Cancel()
	if e := k.Finish(nil); e == nil || e.Kind != "canceled" {
		t.Fatal(e)
	}
	d.Call("slot.reset", testdriver.Params{"slot": "s"}, nil)
	if e := second.Finish(nil); e == nil || e.Kind != "slot_closed" {
		t.Fatal(e)
	}
}

func TestViewThatIsNotReadHoldsNothingUp(t *testing.T) {
	_, d := testdriver.Open(t)
	d.Slot("s")
	k := d.Look("s", 4096)
	k.Mu.Lock()
	k.Manual = true
	k.Mu.Unlock()
	begun := time.Now()
	e, _, _ := d.Sh("s", "head -c 20000000 /dev/zero; i=0; while [ $i -lt 3000 ]; do echo $i; i=$((i+1)); done")
	if e.ExitCode != 0 || time.Since(begun) > testdriver.Timeout {
		t.Fatalf("%+v after %v", e, time.Since(begun))
	}
	k.Mu.Lock()
	k.Manual = false
	k.Grant()
	k.Mu.Unlock()
	k.Until("what was dropped", func() bool { return k.CountEvents("dropped") > 0 })
	k.Cancel()
	if e := k.Finish(nil); e == nil || e.Kind != "canceled" {
		t.Fatal(e)
	}
}

func TestViewThatIsNotReadCanBeCalledOff(t *testing.T) {
	_, d := testdriver.Open(t)
	d.Slot("s")
	k := d.Look("s", 64)
	k.Mu.Lock()
	k.Manual = true
	k.Mu.Unlock()
	for range 5 {
		d.Sh("s", "echo some text")
	}
	k.Cancel()
	if e := k.Finish(nil); e == nil || e.Kind != "canceled" {
		t.Fatal(e)
	}
}
