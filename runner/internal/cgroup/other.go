//go:build !linux

package cgroup

import "hermes-exec/runner/internal/ipc"

// Make holds no limit here.
func Make([]Group, string, ipc.Limits) ([]Join, map[string]string, error) {
	return nil, map[string]string{}, nil
}

// LiftCPU has no limit to lift here.
func LiftCPU([]Join) (restore func() error) { return func() error { return nil } }

// Remove has nothing to remove here.
func Remove([]Join) error { return nil }
