package channel

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log"
	"runtime/debug"

	"hermes-exec/runner/internal/ipc"
	"hermes-exec/runner/internal/wire"
)

// Contain is deferred in the goroutines of one conversation or stream. A fault there must not end
// the runner of all others.
func Contain(log *log.Logger, task string) {
	if fault := recover(); fault != nil {
		log.Printf("%s: %v\n%s", task, fault, debug.Stack())
	}
}

func encodeResponse(result any, err error) []byte {
	if err != nil {
		result = nil
	} else if result == nil {
		result = struct{}{}
	}
	encoded, encodeErr := json.Marshal(wire.ResponseMessage{Result: result, Error: AsWire(err)})
	if encodeErr == nil && len(encoded) > wire.MaxMessage {
		encodeErr = fmt.Errorf("a result of %d bytes", len(encoded))
		return encodeResponse(nil, &wire.Error{Kind: "too_large", Message: encodeErr.Error()})
	}
	if encodeErr != nil {
		return encodeResponse(nil, &wire.Error{Kind: "internal", Message: encodeErr.Error()})
	}
	return encoded
}

// AsWire converts an error to the form of the protocol.
func AsWire(err error) *wire.Error {
	if err == nil {
		return nil
	}
	var w *wire.Error
	if errors.As(err, &w) {
		return w
	}
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return &wire.Error{Kind: "canceled", Message: err.Error()}
	}
	e := ipc.AsError(err)
	if e.Kind == "" {
		e.Kind = "internal"
	}
	w = &wire.Error{Kind: e.Kind, Message: e.Message, Errno: e.Errno, Path: e.Path}
	if e.Detail != nil {
		w.Detail = e.Detail
	}
	return w
}

// BadRequest returns the error for a malformed request.
func BadRequest(format string, args ...any) *wire.Error {
	return &wire.Error{Kind: "bad_request", Message: fmt.Sprintf(format, args...)}
}

// ErrCanceled is the cause of a Conversation that the driver has cancelled.
var ErrCanceled = &wire.Error{Kind: "canceled", Message: "the request was canceled"}

// Decode reads the params of a method. Any mistake in them is bad_request.
func Decode(params json.RawMessage, into any) error {
	if len(params) == 0 {
		params = json.RawMessage("{}")
	}
	if err := json.Unmarshal(params, into); err != nil {
		return BadRequest("params: %v", err)
	}
	return nil
}
