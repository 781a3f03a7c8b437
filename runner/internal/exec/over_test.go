package exec

import (
	"context"
	"errors"
	"testing"

	"hermes-exec/runner/internal/channel"
	"hermes-exec/runner/internal/ipc"
)

func TestHowACommandEndedWithItsSlotIsNoResult(t *testing.T) {
	slot := &Slot{}
	slot.ctx, slot.cancel = context.WithCancelCause(context.Background())
	for _, ended := range []bool{false, true} {
		exits := make(chan ipc.Exit, 1)
		exits <- ipc.Exit{ExitCode: 143, Signal: 15}
		if ended {
			slot.end(ErrSlotClosed)
		}
		c := &channel.Conversation{Ctx: context.Background()}
		cmd := &command{slot: slot, exit: exits}
		exit, err := (&Runner{}).await(c, cmd, nil, &commandParams{}, &exitResult{})
		if ended && !errors.Is(err, ErrSlotClosed) || !ended && (err != nil || exit.ExitCode != 143) {
			t.Errorf("the slot has ended: %v; %+v, %v", ended, exit, err)
		}
	}
}
