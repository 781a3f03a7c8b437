package link

import (
	"encoding/json"
	"fmt"
	"os"
	"syscall"
	"time"

	"hermes-exec/runner/internal/ipc"
	"hermes-exec/runner/internal/isolation"
)

func (h *Agent) event(op string, body json.RawMessage) {
	if op != ipc.EventExit {
		return
	}
	var e ipc.Exit
	if err := ipc.Decode(body, &e); err != nil {
		fmt.Fprintln(os.Stderr, "runner: bad exit event:", err)
		return
	}
	h.config.OnExit(e)
}

// watch waits for the agent's end. It delivers pending exits before the death.
func (h *Agent) watch(w *Waiting, linkDown <-chan struct{}) {
	<-w.ended
	h.endState = describeEnd(w.state, w.err)
	oom := isKilled(w.state) && oomKills() > h.oomKills
	if oom {
		h.endState += ", out of memory"
	}
	h.deathError = &ipc.Error{
		Kind: "slot_died", Message: fmt.Sprintf("the slot's agent has ended (%s); reset the slot", h.endState),
		Detail: map[string]bool{"oom": oom, "exclusive": h.config.Setup.Level == isolation.Exclusive},
	}
	select {
	case <-linkDown:
	case <-time.After(unreadTimeout):
		// No process of the slot can hold the link open, but a stuck reader must not delay the
		// report of the end.
		h.conn.Close()
	}
	used := h.config.Detach(h)
	for _, group := range h.groups() {
		group.close()
	}
	close(h.ended)
	if used && !h.stopRequested.Load() {
		h.config.OnDeath(h.deathError)
	}
}

func isKilled(state *os.ProcessState) bool {
	if state == nil {
		return false
	}
	ws, ok := state.Sys().(syscall.WaitStatus)
	return ok && ws.Signaled() && ws.Signal() == syscall.SIGKILL
}

func describeEnd(state *os.ProcessState, err error) string {
	if err != nil {
		return "unknown: " + err.Error()
	}
	if ws, ok := state.Sys().(syscall.WaitStatus); ok && ws.Signaled() {
		return fmt.Sprintf("killed by signal %d (%s)", int(ws.Signal()), ws.Signal())
	}
	return state.String()
}
