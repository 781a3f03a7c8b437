package slots

import (
	"cmp"
	"maps"
	"os"
	"sort"
	"strings"

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

const defaultPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// inheritedVariables are the variables that a slot on a host gets from the runner's environment.
var inheritedVariables = []string{"LANG", "LANGUAGE", "LC_ALL", "LC_CTYPE", "TZ"}

// environment returns the slot's base environment: in a sandbox the image's variables, then the
// pool's, then those that describe the slot.
func environment(p CreateParams, setup isolation.Setup) []string {
	env := map[string]string{}
	if p.PrivateRoot {
		for _, key := range inheritedVariables {
			if v, ok := os.LookupEnv(key); ok {
				env[key] = v
			}
		}
	} else {
		for _, entry := range os.Environ() {
			if key, value, ok := strings.Cut(entry, "="); ok && key != "" {
				env[key] = value
			}
		}
	}
	for _, key := range []string{"PWD", "OLDPWD", "SHLVL", "_"} {
		delete(env, key)
	}
	slot := map[string]string{"HOME": setup.Home, "TMPDIR": setup.Tmp, "USER": setup.UserName,
		"LOGNAME": setup.UserName}
	for key := range slot {
		if own := env[key]; own != "" && key != "HOME" && setup.AsImage() {
			slot[key] = own // the image sets another value
		}
	}
	for key, value := range p.Env {
		env[key] = string(value)
	}
	maps.Copy(env, slot)
	if env["PATH"] == "" {
		env["PATH"] = defaultPath
	}
	if env["LANG"] == "" && env["LC_ALL"] == "" {
		env["LANG"] = "C.UTF-8"
	}
	out := make([]string, 0, len(env))
	for key, value := range env {
		out = append(out, key+"="+value)
	}
	sort.Strings(out)
	return out
}
