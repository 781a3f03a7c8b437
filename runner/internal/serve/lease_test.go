package serve_test

import (
	"os"
	"strings"
	"testing"
	"time"

	"hermes-exec/runner/internal/testdriver"
	"hermes-exec/runner/internal/wire"
)

func TestLeaseEndsEverything(t *testing.T) {
	b := testdriver.NewSandbox(t, time.Minute)
	d := testdriver.NewDriver(t)
	if err := d.Attach(b.Dial(), 5); err != nil {
		t.Fatal(err)
	}
	d.Slot("s")
	k := d.Begin("exec.run", testdriver.Shell("s", "sleep 1000"), 1<<20)
	k.Until("the start", func() bool { return len(k.Events) == 1 })
	for range 20 {
		time.Sleep(300 * time.Millisecond)
		d.Write(wire.AppendFrame(nil, wire.Keepalive, 0, 0, nil))
	}
	select {
	case <-b.Ended:
		t.Fatal("ended although the driver spoke")
	default:
	}
	b.WaitEnd(testdriver.Timeout)
	if m := <-d.Bye; m.Reason != "lease" {
		t.Fatal(m)
	}
	if _, err := os.Stat(b.Base); !os.IsNotExist(err) {
		t.Fatal("the base directory is left")
	}
}

func TestRunnerWithoutDriverEnds(t *testing.T) {
	b := testdriver.NewSandbox(t, 300*time.Millisecond)
	conn := b.Dial() // sends nothing, and does not authenticate
	defer conn.Close()
	b.WaitEnd(testdriver.Timeout)
}

func TestShutdown(t *testing.T) {
	t.Run("method", func(t *testing.T) {
		b, d := testdriver.Open(t)
		d.Call("sandbox.shutdown", testdriver.Params{}, nil)
		b.WaitEnd(testdriver.Timeout)
		if m := <-d.Bye; m.Reason != "shutdown" {
			t.Fatal(m)
		}
	})
	t.Run("goodbye", func(t *testing.T) {
		b, d := testdriver.Open(t)
		d.Slot("s")
		d.Begin("exec.run", testdriver.Shell("s", "sleep 1000"), 1<<20)
		d.Write(wire.AppendFrame(nil, wire.Goodbye, 0, 0, []byte(`{"reason":"shutdown","message":""}`)))
		b.WaitEnd(testdriver.Timeout)
	})
	t.Run("detach", func(t *testing.T) {
		b, d := testdriver.Open(t)
		d.Slot("s")
		k := d.Begin("exec.run", testdriver.Shell("s", "sleep 0.2; echo x"), 1<<20)
		d.Write(wire.AppendFrame(nil, wire.Goodbye, 0, 0, []byte(`{"reason":"detach","message":""}`)))
		<-d.Closed
		d.Reopen(b)
		if err := k.Finish(nil); err != nil || string(k.Bytes(1)) != "x\n" {
			t.Fatal(err)
		}
	})
}

func TestBadRequests(t *testing.T) {
	_, d := testdriver.Open(t)
	for name, payload := range map[string]string{
		"no json": `{"method":`, "a list": `[]`, "no method": `{}`,
		"params a string": `{"method":"exec.run","params":"x"}`,
		"huge window":     `{"method":"sandbox.info","params":{},"window":999999999999}`,
		"deep":            strings.Repeat("[", 20000),
	} {
		t.Run(name, func(t *testing.T) {
			d.Mu.Lock()
			d.Next++
			fresh := testdriver.NewTalk(d, d.Next)
			d.Talks[fresh.ID] = fresh
			d.Mu.Unlock()
			d.Write(wire.AppendFrame(nil, wire.Request, 0, fresh.ID, []byte(payload)))
			if err := fresh.Finish(nil); err == nil || err.Kind != "bad_request" {
				t.Fatal(err)
			}
		})
	}
}
