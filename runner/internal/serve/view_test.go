package serve_test

import (
	"encoding/base64"
	"strings"
	"testing"
	"time"
)

// look begins slot.view and waits until it shows what comes.
func (d *driver) look(slot string, window int64) *talk {
	d.t.Helper()
	k := d.begin("slot.view", params{"slot": slot}, window)
	k.until("viewing", func() bool { return len(k.events) > 0 })
	return k
}

// seen counts events of a kind; output gives what was shown of a stream.
func (k *talk) seen(kind string) int {
	n := 0
	for _, e := range k.events {
		if e["event"] == kind {
			n++
		}
	}
	return n
}

func (k *talk) output(stream float64) string {
	var all strings.Builder
	for _, e := range k.events {
		if e["event"] == "output" && e["stream"] == stream {
			data, err := base64.StdEncoding.DecodeString(e["data"].(string))
			if err != nil {
				k.d.t.Error(err)
			}
			all.Write(data)
		}
	}
	return all.String()
}

func TestView(t *testing.T) {
	_, d := open(t)
	d.slot("s")
	d.slot("other")
	d.sh("s", "echo before")
	k, second := d.look("s", 1<<20), d.look("s", 1<<20)
	d.sh("other", "echo not yours")
	d.sh("s", "echo out; echo err >&2; exit 3")
	id, _ := d.spawn(shell("s", "echo later"))
	d.wait(id)
	k.until("both ends", func() bool { return k.seen("ended") == 2 })
	if out, err := k.output(1), k.output(2); out != "out\nlater\n" || err != "err\n" {
		t.Fatalf("%q %q", out, err)
	}
	if first := k.events[1]; first["event"] != "started" || first["command"] != "echo out; echo err >&2; exit 3" ||
		first["pid"].(float64) <= 0 {
		t.Fatalf("%v", first)
	}
	k.cancel()
	if e := k.finish(nil); e == nil || e.Kind != "canceled" {
		t.Fatal(e)
	}
	d.call("slot.reset", params{"slot": "s"}, nil)
	if e := second.finish(nil); e == nil || e.Kind != "slot_closed" {
		t.Fatal(e)
	}
}

func TestViewThatIsNotReadHoldsNothingUp(t *testing.T) {
	_, d := open(t)
	d.slot("s")
	k := d.look("s", 4096)
	k.mu.Lock()
	k.manual = true
	k.mu.Unlock()
	begun := time.Now()
	e, _, _ := d.sh("s", "head -c 20000000 /dev/zero; i=0; while [ $i -lt 3000 ]; do echo $i; i=$((i+1)); done")
	if e.ExitCode != 0 || time.Since(begun) > patience {
		t.Fatalf("%+v after %v", e, time.Since(begun))
	}
	k.mu.Lock()
	k.manual = false
	k.grant()
	k.mu.Unlock()
	k.until("what was dropped", func() bool { return k.seen("dropped") > 0 })
	k.cancel()
	if e := k.finish(nil); e == nil || e.Kind != "canceled" {
		t.Fatal(e)
	}
}

func TestViewThatIsNotReadCanBeCalledOff(t *testing.T) {
	_, d := open(t)
	d.slot("s")
	k := d.look("s", 64)
	k.mu.Lock()
	k.manual = true
	k.mu.Unlock()
	for range 5 {
		d.sh("s", "echo some text")
	}
	k.cancel()
	if e := k.finish(nil); e == nil || e.Kind != "canceled" {
		t.Fatal(e)
	}
}
