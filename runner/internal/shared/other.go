//go:build !linux

package shared

import "hermes-exec/runner/internal/users"

// Places are of Linux.
type Cleaner struct{}

// New makes no Places.
func New(*users.Allocator, string, []string) *Cleaner { return &Cleaner{} }

// Find finds none.
func (*Cleaner) Find() {}

// Holder is one whose processes are gone.
type Holder struct {
	UID, GID                   uint32
	Own, Image, Files, Objects bool
}

// Remove has nothing to remove: slots have no uids of their own.
func (*Cleaner) Remove(Holder) []string { return nil }

// Finish has nothing to remove either.
func (*Cleaner) Finish() {}
