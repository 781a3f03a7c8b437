//go:build !linux

package shared

import "hermes-exec/runner/internal/users"

// Cleaner does nothing on this system.
type Cleaner struct{}

// New returns an empty Cleaner.
func New(*users.Allocator, string, []string) *Cleaner { return &Cleaner{} }

// Find does nothing.
func (*Cleaner) Find() {}

// Holder is a user of a slot whose processes have ended.
type Holder struct {
	UID, GID                   uint32
	Own, Image, Files, Objects bool
}

// Remove removes nothing: slots have no uids of their own.
func (*Cleaner) Remove(Holder) []string { return nil }

// Finish does nothing.
func (*Cleaner) Finish() {}
