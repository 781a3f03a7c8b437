//go:build !linux

package memory

import "hermes-exec/runner/internal/ipc"

// OOMCounter counts nothing: this system ends no process for lack of memory.
type OOMCounter struct{}

// Mark is empty on this system.
type Mark struct{}

// Mark returns an empty Mark.
func (*OOMCounter) Mark() Mark { return Mark{} }

// IsOutOfMemory always returns false on this system.
func (*OOMCounter) IsOutOfMemory(Mark, ipc.Exit, bool, bool) bool { return false }
