//go:build !linux

// Package shared removes what slots leave in places that they share, on Linux.
package shared

import "hermes-exec/runner/internal/users"

// Places are of Linux.
type Places struct{}

// New makes no Places.
func New(*users.Allocator, string, []string) *Places { return &Places{} }

// Find finds none.
func (*Places) Find() {}

// Holder is one whose processes are gone.
type Holder struct {
	UID, GID                   uint32
	Own, Image, Files, Objects bool
}

// Remove has nothing to remove: slots have no uids of their own.
func (*Places) Remove(Holder) []string { return nil }

// Finish has nothing to remove either.
func (*Places) Finish() {}
