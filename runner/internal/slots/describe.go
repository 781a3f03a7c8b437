package slots

import (
	"cmp"

	"hermes-exec/runner/internal/ipc"
	"hermes-exec/runner/internal/isolation"
	"hermes-exec/runner/internal/rootfs"
	"hermes-exec/runner/internal/session"
)

// describe sets the facts of a slot that is set up.
func (s *level) describe(p CreateParams) {
	u := s.setup
	s.facts.Workspace, s.facts.Home, s.facts.Tmp = ipc.Bytes(u.Workspace), ipc.Bytes(u.Home), ipc.Bytes(u.Tmp)
	s.facts.UID, s.facts.GID, s.facts.UserName = int(u.UID), int(u.GID), u.UserName
	s.facts.Shells = session.FindShells()
	s.facts.Shell = session.StandardShell(s.facts.Shells)
	if s.facts.Shell != nil {
		if shell, ok := session.BestShell(s.facts.Shells, s.facts.Shells[*s.facts.Shell]); ok {
			s.facts.Session = &SessionFacts{Shell: shell.Name, Keeps: shell.Keeps()}
		}
	}
	if s.facts.Loopback = s.networkOwner(); !u.View.Network {
		s.facts.Loopback = "slot"
	}
	iso := &s.facts.Isolation
	iso.Level = u.Level
	switch u.Level {
	case isolation.Exclusive:
		iso.Filesystem, iso.Processes, iso.Users, iso.Network = "the whole sandbox", "the whole sandbox",
			"the whole sandbox, as "+u.UserName, "the "+s.networkOwner()+"'s"
		if s.isScoped() {
			iso.Network += scopedSockets
		}
	case isolation.Namespaces:
		s.describeNamespaces()
	default:
		s.describeShared(p)
	}
}

const scopedSockets = "; abstract sockets within the slot only (Landlock)"

// networkOwner returns whose network the slot shares if it has none of its own.
func (s *level) networkOwner() string {
	if s.onHost {
		return "host"
	}
	return cmp.Or(s.m.network, "sandbox")
}

func (s *level) describeNamespaces() {
	u, iso := s.setup, &s.facts.Isolation
	if u.OwnRoot() {
		iso.Filesystem = "own root: a layer of the slot's over the image"
		iso.Processes = "own pid and ipc namespaces"
		iso.Users = "the image's, as " + u.UserName + ", in a user namespace with a container's capabilities"
		iso.Network = s.describeNetwork()
		return
	}
	iso.PriceMS = s.m.facts.PriceMS
	iso.Filesystem = "private mount namespace: the system read-only, own workspace, home, /tmp, /dev/shm"
	if u.View.Kind == rootfs.ViewSandbox {
		iso.Filesystem = "private mount namespace: the image, own workspace, home, /dev/shm"
		if u.View.ImageReadOnly {
			iso.Filesystem = "private mount namespace: the image read-only, own workspace, home, /dev/shm"
		}
		if u.Tmp == "/tmp" {
			iso.Filesystem += ", /tmp"
		}
	}
	iso.Processes = "own pid and ipc namespaces"
	switch s.method {
	case isolation.MethodDirect:
		iso.Users = "own uid, no capabilities"
	case isolation.MethodIdentity:
		iso.Users = "own uid in a user namespace, no capabilities"
	default:
		iso.Users = "the runner's uid in a user namespace of its own, no capabilities"
	}
	iso.Network = s.describeNetwork()
}

func (s *level) describeNetwork() string {
	switch {
	case !s.setup.View.Network:
		return "own namespace, loopback only"
	case s.isScoped():
		return "shared with the " + s.networkOwner() + scopedSockets
	}
	return "shared with the " + s.networkOwner()
}

func (s *level) describeShared(p CreateParams) {
	u, iso := s.setup, &s.facts.Isolation
	iso.Network = "shared with the " + s.networkOwner()
	iso.Filesystem = "shared with the sandbox, /tmp too, by file mode; own directories"
	iso.Processes = "shared table; signals by uid"
	iso.Users = "own uid, no_new_privs"
	switch {
	case u.Level == isolation.None && !u.Switch, u.Level == isolation.None && !p.PrivateRoot:
		iso.Users, iso.Filesystem = "shared: "+u.UserName, "shared with the sandbox"
		iso.Processes = "shared with the sandbox"
	case u.Level == isolation.UID && !s.named:
		iso.Users = "own uid without a passwd name, no_new_privs"
	case u.Level == isolation.Landlock:
		iso.Filesystem = "the system read-only, own directories; other files closed (Landlock)"
		if !u.Switch {
			iso.Users = "shared: " + u.UserName + ", no_new_privs"
			iso.Processes = "shared table; no tracing of others (Landlock)"
		}
	}
	if s.isScoped() {
		iso.Processes = "shared table; signals within the slot only (Landlock)"
		iso.Network += scopedSockets
	}
}

func (s *level) shellPath() string {
	all := session.FindShells()
	if kind := session.StandardShell(all); kind != nil {
		return all[*kind]
	}
	return "/bin/false"
}
