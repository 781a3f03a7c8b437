package views

import (
	"context"
	"encoding/json"
	"slices"
	"sync"
	"sync/atomic"

	"hermes-exec/runner/internal/budget"
	"hermes-exec/runner/internal/channel"
	"hermes-exec/runner/internal/ipc"
)

const (
	// queueLimit is how many bytes wait for a viewer. Output that comes while the queue is full is
	// dropped.
	queueLimit    = 256 << 10
	pieceSize     = 16 << 10
	eventOverhead = 128 // of an event besides its bytes
)

// Views are the viewers of one slot.
type Views struct {
	mu  sync.Mutex
	all atomic.Pointer[[]*view] // nil while there is no viewer
}

// view is the queue of one viewer.
type view struct {
	news   chan struct{}
	memory *budget.Account

	mu      sync.Mutex
	queue   []event
	size    int
	dropped int64
}

// event is an EVENT of slot.view; Data is sent as base64.
type event struct {
	Event    string     `json:"event"`
	ID       uint64     `json:"id,omitempty"`
	PID      int        `json:"pid,omitempty"`
	Command  *ipc.Bytes `json:"command,omitempty"`
	Stream   int        `json:"stream,omitempty"`
	Data     []byte     `json:"data,omitempty"`
	ExitCode *int       `json:"exit_code,omitempty"`
	Bytes    int64      `json:"bytes,omitempty"`
}

func (v *view) add(e event) {
	cost := eventOverhead + len(e.Data)
	if e.Command != nil {
		cost += len(*e.Command)
	}
	v.mu.Lock()
	if v.size+cost > queueLimit || !v.memory.Reserve(int64(cost)) {
		v.dropped += int64(len(e.Data))
	} else {
		v.queue, v.size = append(v.queue, e), v.size+cost
	}
	v.mu.Unlock()
	select {
	case v.news <- struct{}{}:
	default:
	}
}

// takeEvents returns the queued events, with the count of dropped bytes at the end.
func (v *view) takeEvents() []event {
	v.mu.Lock()
	defer v.mu.Unlock()
	events := v.queue
	if v.dropped > 0 {
		events = append(events, event{Event: "dropped", Bytes: v.dropped})
	}
	v.queue, v.size, v.dropped = nil, 0, 0
	v.memory.Close()
	return events
}

// Show sends the output of the slot's commands and processes to a conversation until ctx ends.
func (vs *Views) Show(ctx context.Context, c *channel.Conversation, memory *budget.Budget) {
	v := &view{news: make(chan struct{}, 1), memory: memory.Open()}
	vs.add(v)
	defer v.memory.Close()
	defer vs.remove(v)
	c.Event([]byte(`{"event":"viewing"}`), false)
	for {
		select {
		case <-v.news:
		case <-ctx.Done():
		}
		events := v.takeEvents()
		for i := range events {
			// The last output before a reset is small enough to be sent without credit.
			if !c.RoomWithin(ctx) {
				sendEvents(c, append(events[i:], v.takeEvents()...))
				break
			}
			sendEvents(c, events[i:i+1])
		}
		c.Flush()
		if ctx.Err() != nil {
			sendEvents(c, v.takeEvents())
			return
		}
	}
}

func sendEvents(c *channel.Conversation, events []event) {
	for _, e := range events {
		if encoded, err := json.Marshal(e); err == nil {
			c.Event(encoded, true)
		}
	}
}

func (vs *Views) add(v *view) {
	vs.mu.Lock()
	defer vs.mu.Unlock()
	var views []*view
	if now := vs.all.Load(); now != nil {
		views = slices.Clone(*now)
	}
	views = append(views, v)
	vs.all.Store(&views)
}

func (vs *Views) remove(v *view) {
	vs.mu.Lock()
	defer vs.mu.Unlock()
	views := slices.DeleteFunc(slices.Clone(*vs.all.Load()), func(other *view) bool { return other == v })
	if len(views) == 0 {
		vs.all.Store(nil)
		return
	}
	vs.all.Store(&views)
}

func (vs *Views) publish(e event) {
	if views := vs.all.Load(); views != nil {
		for _, v := range *views {
			v.add(e)
		}
	}
}

// Output reports output of a command. Like Start and End it costs next to nothing without a viewer.
func (vs *Views) Output(id uint64, stream int, p []byte) {
	if vs.all.Load() == nil {
		return
	}
	for piece := range slices.Chunk(p, pieceSize) {
		vs.publish(event{Event: "output", ID: id, Stream: stream, Data: slices.Clone(piece)})
	}
}

// Start reports that a command has started.
func (vs *Views) Start(id uint64, pid int, command func() ipc.Bytes) {
	if vs.all.Load() == nil {
		return
	}
	text := command()
	text = text[:min(len(text), pieceSize)]
	vs.publish(event{Event: "started", ID: id, PID: pid, Command: &text})
}

// End reports that a command has ended.
func (vs *Views) End(id uint64, exitCode int) {
	if vs.all.Load() != nil {
		vs.publish(event{Event: "ended", ID: id, ExitCode: &exitCode})
	}
}
