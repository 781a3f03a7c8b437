//go:build !linux

package cgroup

import "hermes-exec/runner/internal/ipc"

// Make enforces no limit on this system.
func Make([]Group, string, ipc.Limits) ([]Join, map[string]string, error) {
	return nil, map[string]string{}, nil
}

// LiftCPU does nothing on this system.
func LiftCPU([]Join) (restore func() error) { return func() error { return nil } }

// Remove does nothing on this system.
func Remove([]Join) error { return nil }
