package exec

import (
	"context"
	"errors"
	"testing"

	"hermes-exec/runner/internal/channel"
	"hermes-exec/runner/internal/command"
	"hermes-exec/runner/internal/ipc"
)

func TestHowACommandEndedWithItsSlotIsNoResult(t *testing.T) {
	scope := command.NewScope(context.Background(), "s", nil, nil)
	for _, ended := range []bool{false, true} {
		exits := make(chan ipc.Exit, 1)
		exits <- ipc.Exit{ExitCode: 143, Signal: 15}
		if ended {
			scope.End(command.ErrSlotClosed)
		}
		c := &channel.Conversation{Ctx: context.Background()}
		cmd := &command.Command{Scope: scope, Exit: exits}
		exit, err := (&Runner{}).await(c, cmd, nil, &command.Params{}, &command.Result{}, false)
		if ended && !errors.Is(err, command.ErrSlotClosed) || !ended && (err != nil || exit.ExitCode != 143) {
			t.Errorf("the slot has ended: %v; %+v, %v", ended, exit, err)
		}
	}
}
