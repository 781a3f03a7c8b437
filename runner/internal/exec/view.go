package exec

import (
	"context"
	"encoding/json"
	"slices"
	"sync"

	"hermes-exec/runner/internal/channel"
	"hermes-exec/runner/internal/ipc"
)

const (
	// viewQueue is how many bytes wait for somebody who looks on; what comes
	// while it is full is not shown.
	viewQueue = 256 << 10
	viewPiece = 16 << 10
	viewCost  = 128 // of an event besides its bytes
)

// view is somebody who looks at what the commands of a slot print. The
// commands never wait for it.
type view struct {
	news chan struct{}

	mu      sync.Mutex
	queue   []viewEvent
	size    int
	dropped int64
}

// viewEvent is an EVENT of slot.view; Data goes as base64.
type viewEvent struct {
	Event    string     `json:"event"`
	ID       uint64     `json:"id,omitempty"`
	PID      int        `json:"pid,omitempty"`
	Command  *ipc.Bytes `json:"command,omitempty"`
	Stream   int        `json:"stream,omitempty"`
	Data     []byte     `json:"data,omitempty"`
	ExitCode *int       `json:"exit_code,omitempty"`
	Bytes    int64      `json:"bytes,omitempty"`
}

func (v *view) add(e viewEvent) {
	cost := viewCost + len(e.Data)
	if e.Command != nil {
		cost += len(*e.Command)
	}
	v.mu.Lock()
	if v.size+cost > viewQueue {
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

// take gives the queued events; what was dropped came after them.
func (v *view) take() []viewEvent {
	v.mu.Lock()
	defer v.mu.Unlock()
	events := v.queue
	if v.dropped > 0 {
		events = append(events, viewEvent{Event: "dropped", Bytes: v.dropped})
	}
	v.queue, v.size, v.dropped = nil, 0, 0
	return events
}

// slotView tells what the slot's commands and processes print from now on,
// until it is called off or the slot is reset.
func (r *Runner) slotView(c *channel.Conversation, params json.RawMessage) (any, error) {
	slot, _, err := r.namedSlot(c, params)
	if err != nil {
		return nil, err
	}
	ctx, leave := slot.Join(c.Ctx)
	defer leave()
	v := &view{news: make(chan struct{}, 1)}
	slot.addView(v)
	defer slot.removeView(v)
	c.Event([]byte(`{"event":"viewing"}`), false)
	for {
		select {
		case <-v.news:
		case <-ctx.Done():
		}
		events := v.take()
		for i := range events {
			// The last output before a reset is small enough to go without
			// credit.
			if !c.RoomWithin(ctx) {
				tellAll(c, append(events[i:], v.take()...))
				break
			}
			tellAll(c, events[i:i+1])
		}
		c.Flush()
		if ctx.Err() != nil {
			tellAll(c, v.take())
			return nil, context.Cause(ctx)
		}
	}
}

func tellAll(c *channel.Conversation, events []viewEvent) {
	for _, e := range events {
		if encoded, err := json.Marshal(e); err == nil {
			c.Event(encoded, true)
		}
	}
}

func (st *Slot) addView(v *view) {
	st.mu.Lock()
	defer st.mu.Unlock()
	var views []*view
	if now := st.views.Load(); now != nil {
		views = slices.Clone(*now)
	}
	views = append(views, v)
	st.views.Store(&views)
}

func (st *Slot) removeView(v *view) {
	st.mu.Lock()
	defer st.mu.Unlock()
	views := slices.DeleteFunc(slices.Clone(*st.views.Load()), func(other *view) bool { return other == v })
	if len(views) == 0 {
		st.views.Store(nil)
		return
	}
	st.views.Store(&views)
}

func (st *Slot) tellViews(e viewEvent) {
	if views := st.views.Load(); views != nil {
		for _, v := range *views {
			v.add(e)
		}
	}
}

// showOutput, showStart and showEnd cost next to nothing while nobody looks.
func (st *Slot) showOutput(id uint64, stream int, p []byte) {
	if st.views.Load() == nil {
		return
	}
	for piece := range slices.Chunk(p, viewPiece) {
		st.tellViews(viewEvent{Event: "output", ID: id, Stream: stream, Data: slices.Clone(piece)})
	}
}

func (st *Slot) showStart(id uint64, pid int, p *commandParams) {
	if st.views.Load() == nil {
		return
	}
	text := commandText(p)
	text = text[:min(len(text), viewPiece)]
	st.tellViews(viewEvent{Event: "started", ID: id, PID: pid, Command: &text})
}

func (st *Slot) showEnd(id uint64, exitCode int) {
	if st.views.Load() != nil {
		st.tellViews(viewEvent{Event: "ended", ID: id, ExitCode: &exitCode})
	}
}
