//go:build !linux

package memory

import "hermes-exec/runner/internal/ipc"

// Losses are none: this system ends nobody for want of memory.
type Losses struct{}

// Mark has nothing to count.
type Mark struct{}

// Mark has nothing to count.
func (*Losses) Mark() Mark { return Mark{} }

// LostToOOM is always false here.
func (*Losses) LostToOOM(Mark, ipc.Exit, bool, bool) bool { return false }
