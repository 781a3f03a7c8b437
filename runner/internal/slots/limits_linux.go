package slots

import (
	"path/filepath"

	"hermes-exec/runner/internal/isolation"
	"hermes-exec/runner/internal/rootfs"
)

const hasRlimits = true

// isScoped reports whether Landlock keeps abstract sockets and signals within the slot.
func (s *level) isScoped() bool {
	shares := s.setup.Level != isolation.None && (s.setup.Level != isolation.Exclusive || s.m.network != "")
	return shares && isolation.CanScope(s.m.facts.LandlockABI)
}

// domain returns the restrictions by Landlock.
func (s *level) domain() isolation.Domain {
	d := isolation.Domain{Scoped: s.isScoped()}
	if s.setup.Level != isolation.Landlock {
		return d
	}
	d.Files = &isolation.Files{Device: append(rootfs.Devices(), s.devices...), Own: []string{s.dir}}
	for _, group := range s.setup.Cgroups {
		d.Files.Device = append(d.Files.Device, group.Dir)
	}
	if s.onHost {
		d.Files.Read = append(rootfs.HostPaths(), s.readOnly...)
		return d
	}
	// A sandbox of this library holds no files of others but those of its slots.
	d.Files.Read = rootfs.PathsExcept(filepath.Dir(s.dir), s.m.base, "/tmp", "/var/tmp", "/dev")
	d.Files.Own = append(d.Files.Own, s.m.shared...)
	return d
}
