package channel_test

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"hermes-exec/runner/internal/channel"
	"hermes-exec/runner/internal/testdriver"
	"hermes-exec/runner/internal/wire"
)

// endsWell waits for an attached one to end without an error.
func endsWell(t *testing.T, result <-chan error, otherwise string) {
	t.Helper()
	select {
	case err := <-result:
		if err != nil {
			t.Fatal(err)
		}
	case <-time.After(testdriver.Timeout):
		t.Fatal(otherwise)
	}
}

func TestAttachDoesNotWaitForARunnerWhenItsDriverIsGone(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("only Linux tells of it")
	}
	fds, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM, 0)
	if err != nil {
		t.Fatal(err)
	}
	socket := os.NewFile(uintptr(fds[0]), "socket")
	defer socket.Close()
	syscall.Close(fds[1])
	pipe, other := pipePair(t)
	other.Close()
	for _, stream := range []*os.File{socket, pipe} {
		if err := channel.Attach(t.TempDir(), stream, stream); err == nil || !strings.Contains(err.Error(), "the other end of the stream is closed") {
			t.Errorf("%s: %v", stream.Name(), err)
		}
	}
}

func TestAttach(t *testing.T) {
	b := testdriver.NewSandbox(t, time.Minute)
	ourIn, theirOut := pipePair(t)
	theirIn, ourOut := pipePair(t)
	result := b.StartAttach(theirIn, theirOut)
	d := testdriver.NewDriver(t)
	if err := d.Attach(twoFiles{ourIn, ourOut}, 60); err != nil {
		t.Fatal(err)
	}
	d.Slot("s")
	if _, out, _ := d.Sh("s", "echo through"); out != "through\n" {
		t.Fatalf("%q", out)
	}
	ourOut.Close()
	endsWell(t, result, "attach did not end with its stream")
}

func TestAttachCopiesWhereItMust(t *testing.T) {
	b := testdriver.NewSandbox(t, time.Minute)
	// A regular file as output cannot be waited for.
	out, err := os.Create(filepath.Join(t.TempDir(), "out"))
	if err != nil {
		t.Fatal(err)
	}
	in, feed := pipePair(t)
	result := b.StartAttach(in, out)
	hello := wire.HelloMessage{Versions: []int{1}, Nonce: strings.Repeat("ab", 16),
		Claim: hex.EncodeToString(make([]byte, 32)), LeaseS: 60}
	payload, _ := json.Marshal(hello)
	_, _ = feed.Write(wire.AppendFrame(nil, wire.Hello, 0, 0, payload))
	_, _ = feed.Write(testdriver.EncodeRequest(1, "sandbox.info", testdriver.Params{}, 0))
	deadline := time.Now().Add(testdriver.Timeout)
	for {
		data, _ := os.ReadFile(out.Name())
		if bytes.Contains(data, []byte(`{"result":`)) {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("%q", data)
		}
		time.Sleep(5 * time.Millisecond)
	}
	feed.Close()
	if err := <-result; err != nil {
		t.Fatal(err)
	}
}

func TestAttachWaitsForTheSocket(t *testing.T) {
	dir := testdriver.PassableDir(t)
	in, _ := pipePair(t)
	begun := time.Now()
	if err := channel.Attach(dir, in, in); err == nil || time.Since(begun) < 4*time.Second {
		t.Fatal(err, time.Since(begun))
	}
}

func TestLongBaseDirectory(t *testing.T) {
	b := &testdriver.Sandbox{T: t, Base: filepath.Join(testdriver.PassableDir(t), strings.Repeat("long-name-", 12))}
	b.Start(time.Minute)
	ourIn, theirOut := pipePair(t)
	theirIn, ourOut := pipePair(t)
	b.StartAttach(theirIn, theirOut)
	d := testdriver.NewDriver(t)
	if err := d.Attach(twoFiles{ourIn, ourOut}, 60); err != nil {
		t.Fatal(err)
	}
}

func pipePair(t *testing.T) (r, w *os.File) {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		r.Close()
		w.Close()
	})
	return r, w
}

// twoFiles is a connection of two pipes.
type twoFiles struct{ in, out *os.File }

func (c twoFiles) Read(p []byte) (int, error)  { return c.in.Read(p) }
func (c twoFiles) Write(p []byte) (int, error) { return c.out.Write(p) }
func (c twoFiles) Close() error {
	c.in.Close()
	return c.out.Close()
}
func (c twoFiles) LocalAddr() net.Addr                { return nil }
func (c twoFiles) RemoteAddr() net.Addr               { return nil }
func (c twoFiles) SetDeadline(t time.Time) error      { return nil }
func (c twoFiles) SetReadDeadline(t time.Time) error  { return nil }
func (c twoFiles) SetWriteDeadline(t time.Time) error { return nil }
