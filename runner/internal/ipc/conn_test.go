package ipc

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

type echo struct {
	Text string `json:"text"`
	N    int    `json:"n"`
}

// linkPair gives two ends; the far one answers with handle.
func linkPair(t testing.TB, handle Handler, event func(string, json.RawMessage)) (near, far *Conn) {
	t.Helper()
	a, b, err := Pair()
	if err != nil {
		t.Fatal(err)
	}
	if near, err = New(a); err != nil {
		t.Fatal(err)
	}
	if far, err = New(b); err != nil {
		t.Fatal(err)
	}
	go func() { _ = near.Run(nil, event) }()
	go func() { _ = far.Run(handle, nil) }()
	t.Cleanup(near.Close)
	t.Cleanup(far.Close)
	return near, far
}

// echoing reads each descriptor to its end and sends back as many pipes.
func echoing(_ context.Context, op string, m *Message) (any, []int, error) {
	var in echo
	if err := json.Unmarshal(m.Body, &in); err != nil {
		return nil, nil, err
	}
	if op == "fail" {
		m.CloseFDs()
		return nil, nil, &os.PathError{Op: "open", Path: in.Text, Err: syscall.ENOENT}
	}
	out := echo{Text: op + in.Text, N: len(m.FDs)}
	var fds []int
	for _, fd := range m.FDs {
		f := os.NewFile(uintptr(fd), "received")
		content, err := io.ReadAll(f)
		f.Close()
		if err != nil {
			return nil, nil, err
		}
		r, w, err := os.Pipe()
		if err != nil {
			return nil, nil, err
		}
		fmt.Fprintf(w, "<%s>", content)
		w.Close()
		fd, err := syscall.Dup(int(r.Fd()))
		r.Close()
		if err != nil {
			return nil, nil, err
		}
		fds = append(fds, fd)
	}
	return out, fds, nil
}

func TestCallsSideBySideWithDescriptors(t *testing.T) {
	near, _ := linkPair(t, echoing, nil)
	var wg sync.WaitGroup
	for i := range 300 {
		wg.Add(1)
		go func() {
			defer wg.Done()
			in := echo{Text: strings.Repeat(fmt.Sprint(i), 1+(i%7)*1000), N: i}
			var fds []int
			for k := range i % 5 {
				r, w, err := os.Pipe()
				if err != nil {
					t.Error(err)
					return
				}
				defer r.Close()
				fmt.Fprintf(w, "%d.%d", i, k)
				w.Close()
				fds = append(fds, int(r.Fd()))
			}
			var out echo
			got, err := near.Call(context.Background(), "op", in, &out, fds...)
			if err != nil || out.Text != "op"+in.Text || out.N != i%5 || len(got) != i%5 {
				t.Errorf("%d: %v, %d descriptors", i, err, len(got))
			}
			for k, fd := range got {
				f := os.NewFile(uintptr(fd), "back")
				content, err := io.ReadAll(f)
				f.Close()
				if want := fmt.Sprintf("<%d.%d>", i, k); err != nil || string(content) != want {
					t.Errorf("%q instead of %q, %v", content, want, err)
				}
			}
		}()
	}
	wg.Wait()
}

// makeLane gives a lane beside a link; its far end is served on one thread.
func makeLane(t testing.TB, handle Handler) (lane *Conn, settled <-chan struct{}, over <-chan error) {
	t.Helper()
	near, far := linkPair(t, echoing, nil)
	a, b, err := Pair()
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	free := make(chan struct{}, 100)
	if lane, err = near.NewLane(a, func() { free <- struct{}{} }); err != nil {
		t.Fatal(err)
	}
	fd, err := syscall.Dup(int(b.Fd()))
	if err != nil {
		t.Fatal(err)
	}
	theirs := far.AcceptLane(fd)
	done := make(chan error, 1)
	go func() { done <- theirs.Serve(handle) }()
	go func() { _ = lane.Run(nil, nil) }()
	t.Cleanup(lane.Close)
	return lane, free, done
}

func TestServedOnOneThread(t *testing.T) {
	near, settled, over := makeLane(t, echoing)
	for _, size := range []int{0, 10, 5000, 3 << 20} {
		r, w, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		w.Close()
		var out echo
		fds, err := near.Call(context.Background(), "op", echo{Text: strings.Repeat("x", size)}, &out, int(r.Fd()))
		r.Close()
		if err != nil || len(out.Text) != size+2 || out.N != 1 || len(fds) != 1 {
			t.Fatal(size, err, len(out.Text), out.N, fds)
		}
		_ = syscall.Close(fds[0])
		<-settled
	}
	var failed *Error
	if _, err := near.Call(context.Background(), "fail", echo{Text: "p"}, nil); !errors.As(err, &failed) ||
		failed.Errno != "ENOENT" {
		t.Fatal(err)
	}
	near.Close()
	if err := <-over; !errors.Is(err, io.EOF) {
		t.Fatal(err)
	}
}

func TestLaneIsFreeWhenItsThreadIs(t *testing.T) {
	entered, release := make(chan struct{}), make(chan struct{})
	lane, settled, _ := makeLane(t, func(ctx context.Context, op string, m *Message) (any, []int, error) {
		if op == "wait" {
			close(entered)
			<-ctx.Done()
			<-release
		}
		return echoing(ctx, op, m)
	})
	ctx, cancel := context.WithCancel(context.Background())
	go func() { <-entered; cancel() }()
	if _, err := lane.Call(ctx, "wait", echo{}, nil); !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	select {
	case <-settled:
		t.Fatal("settled while the other end is at work")
	case <-time.After(20 * time.Millisecond):
	}
	close(release)
	<-settled
	var out echo
	if _, err := lane.Call(context.Background(), "op", echo{Text: "x"}, &out); err != nil || out.Text != "opx" {
		t.Fatal(err, out)
	}
	<-settled
	lane.Close()
	if _, err := lane.Call(context.Background(), "op", echo{}, nil); !errors.Is(err, ErrClosed) {
		t.Fatal(err)
	}
	<-settled
}

func TestCancelThatComesBeforeItsRequest(t *testing.T) {
	s := &requestSet{running: map[uint64]context.CancelFunc{}}
	for seq := range uint64(10 * maxEarlyCancels) {
		s.cancel(seq)
	}
	if len(s.earlyCancels) > maxEarlyCancels {
		t.Fatal(len(s.earlyCancels))
	}
	s.cancel(1 << 40)
	if ctx := s.enter(1 << 40); ctx.Err() == nil {
		t.Fatal("it goes on")
	}
	s.leave(1 << 40)
	ctx := s.enter(1<<40 + 1)
	s.cancelAll()
	if ctx.Err() == nil || len(s.running) != 1 {
		t.Fatal(len(s.running))
	}
}

func TestLargeMessages(t *testing.T) {
	near, _ := linkPair(t, echoing, nil)
	for _, size := range []int{0, readSize - headerSize - 20, readSize, 1 << 20, 32 << 20} {
		in := echo{Text: strings.Repeat("x", size)}
		var out echo
		if _, err := near.Call(context.Background(), "", in, &out); err != nil || out.Text != in.Text {
			t.Fatalf("%d: %v", size, err)
		}
	}
	_, err := near.Call(context.Background(), "op", echo{Text: strings.Repeat("x", maxBody)}, nil)
	var e *Error
	if !errors.As(err, &e) || e.Kind != "too_large" {
		t.Fatal(err)
	}
}

func TestErrorsTravel(t *testing.T) {
	near, _ := linkPair(t, echoing, nil)
	_, err := near.Call(context.Background(), "fail", echo{Text: "/some/path"}, nil)
	var e *Error
	if !errors.As(err, &e) || e.Kind != "os" || e.Errno != "ENOENT" || e.Path != "/some/path" {
		t.Fatalf("%+v", err)
	}
}

func TestResultThatIsTooLargeIsAnError(t *testing.T) {
	near, _ := linkPair(t, func(context.Context, string, *Message) (any, []int, error) {
		return echo{Text: strings.Repeat("x", maxBody)}, nil, nil
	}, nil)
	_, err := near.Call(context.Background(), "op", echo{}, nil)
	var e *Error
	if !errors.As(err, &e) || e.Kind != "too_large" {
		t.Fatal(err)
	}
}

func TestEventsKeepTheirOrder(t *testing.T) {
	got := make(chan int, 1000)
	_, far := linkPair(t, nil, func(op string, body json.RawMessage) {
		var e echo
		if err := json.Unmarshal(body, &e); err != nil || op != "tick" {
			t.Error(op, err)
		}
		got <- e.N
	})
	for i := range 1000 {
		if err := far.Event("tick", echo{N: i}); err != nil {
			t.Fatal(err)
		}
	}
	for i := range 1000 {
		if n := <-got; n != i {
			t.Fatalf("%d instead of %d", n, i)
		}
	}
}

func TestCallEndsWithTheOtherEnd(t *testing.T) {
	begun := make(chan struct{})
	near, far := linkPair(t, func(context.Context, string, *Message) (any, []int, error) {
		close(begun)
		select {}
	}, nil)
	go func() {
		<-begun
		far.Close()
	}()
	if _, err := near.Call(context.Background(), "op", echo{}, nil); !errors.Is(err, ErrClosed) {
		t.Fatal(err)
	}
	<-near.Done()
	if _, err := near.Call(context.Background(), "op", echo{}, nil); !errors.Is(err, ErrClosed) {
		t.Fatal(err)
	}
}

func TestCallEndsWithItsContext(t *testing.T) {
	release := make(chan struct{})
	near, _ := linkPair(t, func(context.Context, string, *Message) (any, []int, error) {
		<-release
		r, w, err := os.Pipe()
		if err != nil {
			return nil, nil, err
		}
		defer w.Close()
		fd, err := syscall.Dup(int(r.Fd()))
		r.Close()
		return echo{}, []int{fd}, err
	}, nil)
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Millisecond)
	defer cancel()
	if _, err := near.Call(ctx, "op", echo{}, nil); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatal(err)
	}
	close(release) // the late reply's descriptor is closed by the reader
	if fds, err := near.Call(context.Background(), "op", echo{}, nil); err != nil || len(fds) != 1 {
		t.Fatal(fds, err)
	} else {
		_ = syscall.Close(fds[0])
	}
}

func TestHandlerLearnsThatTheCallerGaveUp(t *testing.T) {
	begun, over := make(chan struct{}, 1), make(chan error, 1)
	near, far := linkPair(t, func(ctx context.Context, op string, _ *Message) (any, []int, error) {
		if op == "short" {
			return echo{}, nil, ctx.Err()
		}
		begun <- struct{}{}
		<-ctx.Done()
		over <- ctx.Err()
		return echo{}, nil, nil
	}, nil)
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		<-begun
		cancel()
	}()
	if _, err := near.Call(ctx, "long", echo{}, nil); !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	if err := <-over; !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	if _, err := near.Call(context.Background(), "short", echo{}, nil); err != nil {
		t.Fatal("another request was cancelled too:", err)
	}
	far.requests.mu.Lock()
	if len(far.requests.running) != 0 {
		t.Error("requests that were answered are still entered:", len(far.requests.running))
	}
	far.requests.mu.Unlock()
	go func() { _, _ = near.Call(context.Background(), "long", echo{}, nil) }()
	<-begun
	near.Close()
	if err := <-over; !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
}

// crowded is a socket whose user has too many descriptors under way, for the
// next writes that carry some.
type crowded struct {
	socket
	refusals int
}

func (s *crowded) WriteMsgUnix(p, oob []byte, to *net.UnixAddr) (n, oobn int, err error) {
	if len(oob) > 0 && s.refusals > 0 {
		s.refusals--
		return 0, 0, os.NewSyscallError("sendmsg", syscall.ETOOMANYREFS)
	}
	return s.socket.WriteMsgUnix(p, oob, to)
}

func TestDescriptorsThatCannotBePassedEndTheCallAndNotTheLink(t *testing.T) {
	a, b, err := Pair()
	if err != nil {
		t.Fatal(err)
	}
	sock, err := newSocket(a)
	if err != nil {
		t.Fatal(err)
	}
	full := &crowded{sock, 3}
	near := newConn(full, &requestSet{running: map[uint64]context.CancelFunc{}})
	near.root = near
	far, err := New(b)
	if err != nil {
		t.Fatal(err)
	}
	defer near.Close()
	defer far.Close()
	go func() { _ = near.Run(nil, nil) }()
	go func() { _ = far.Run(echoing, nil) }()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	w.Close()
	call := func() error {
		fds, err := near.Call(context.Background(), "x", echo{Text: "y"}, &echo{}, int(r.Fd()))
		for _, fd := range fds {
			syscall.Close(fd)
		}
		return err
	}
	if err := call(); err != nil || full.refusals != 0 {
		t.Errorf("a short shortage: %v, %d refusals left", err, full.refusals)
	}
	full.refusals = 1 << 30
	var refused *Error
	if err := call(); !errors.As(err, &refused) || refused.Kind != "exhausted" {
		t.Errorf("a long shortage: %v", err)
	}
	full.refusals = 0
	if err := call(); err != nil {
		t.Errorf("afterwards: %v", err)
	}
}
