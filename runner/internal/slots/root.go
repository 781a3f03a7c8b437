package slots

import (
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"sync"

	"hermes-exec/runner/internal/accounts"
	"hermes-exec/runner/internal/bounded"
	"hermes-exec/runner/internal/directories"
	"hermes-exec/runner/internal/ipc"
	"hermes-exec/runner/internal/isolation"
	"hermes-exec/runner/internal/limits"
	"hermes-exec/runner/internal/rights"
	"hermes-exec/runner/internal/rootfs"
)

// ownRootState is the result of the trial whether slots can have roots of their own. Only
// conclusive results are kept: a trial that lacked memory or disk space is repeated.
type ownRootState struct {
	mu     sync.Mutex
	tried  bool
	refuse error
	image  *rootfs.Image
}

// ownRootImage returns the image below the slots' own roots, or why they cannot have any. The
// sandbox's directories must not change afterwards. For the slot that prepares them it returns an
// empty image.
func (m *Manager) ownRootImage(setup bool) (*rootfs.Image, error) {
	r := &m.ownRoot
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.tried {
		if err := m.tryOwnRoot(); ipc.IsShortage(err) {
			return nil, err
		} else {
			r.tried, r.refuse = true, err
		}
	}
	if r.refuse != nil || setup {
		return &rootfs.Image{}, r.refuse
	}
	if r.image == nil {
		at := filepath.Join(m.base, "image")
		image, err := rootfs.ReadImage(m.home(), m.shared, at)
		if ipc.IsShortage(err) {
			_ = os.RemoveAll(at)
			return nil, err
		}
		r.image, r.refuse = image, err
	}
	return r.image, r.refuse
}

func (m *Manager) tryOwnRoot() error {
	trial := filepath.Join(m.base, "trial")
	if err := os.Mkdir(trial, 0o700); err != nil {
		return err
	}
	defer os.RemoveAll(trial)
	return isolation.TryOwnRoot(m.facts, trial)
}

// imageUser gives a slot with a root of its own the image's user, with the capabilities that root
// has in the sandbox.
func (s *level) imageUser(name string) error {
	user, err := accounts.LookupUser(name)
	if err != nil {
		return failure("user", "%v", err)
	}
	u := &s.setup
	if s.m.facts.OneID() {
		if user.UID != 0 || user.GID != 0 {
			return failure("user", "no user but root exists in this sandbox: it cannot become %q", name)
		}
		user.Groups, u.NamespaceMost = nil, limits.NamespaceShare()
	} else if u.CountingUID, err = s.m.ids.Allocate(); err != nil {
		return err
	}
	u.UID, u.GID, u.Groups, u.UserName, u.Home = user.UID, user.GID, user.Groups, user.Name, accounts.HomeOf(user)
	u.Switch = s.m.facts.Switch
	u.Caps = rights.ContainerCaps(s.m.facts.Caps)
	return nil
}

// chooseOwnRootPaths decides the view of a slot with a root of its own. The slot that prepares the
// sandbox sees the sandbox's root, with parts of /proc and /sys hidden.
func (s *level) chooseOwnRootPaths(p CreateParams) {
	u := &s.setup
	if p.Setup {
		u.Workspace, u.Tmp, s.fifos = filepath.Join(s.dir, "workspace"), filepath.Join(s.dir, "tmp"),
			filepath.Join(s.dir, fifoDirName)
		u.View = rootfs.View{Kind: rootfs.ViewOwn, Image: s.image, Network: true, Pids: true}
		return
	}
	u.Workspace, u.Tmp, s.fifos = freePath(cmp.Or(string(p.Workspace), "/workspace")), "/tmp", "/dev/.hermes-exec"
	u.View = rootfs.View{
		Kind: rootfs.ViewOwn, Staging: filepath.Join(s.dir, "root"), Layer: filepath.Join(s.dir, layerDirName),
		Image: s.image, Network: p.Network, Pids: true, Workspace: u.Workspace, Owner: s.user(), MaxPIDs: s.maxPIDs,
		Store: s.m.layers.Dir,
		Binds: []rootfs.Bind{{Source: filepath.Join(s.dir, fifoDirName), Target: s.fifos, ReadOnly: true}},
	}
}

// freshLayer empties the slot's layer if a failed agent has used it: a layer is mounted once only.
func (s *slot) freshLayer() error {
	at := s.setup.View.Layer
	if n, err := bounded.Count(at, 1); err != nil || n == 0 {
		return err
	}
	waste, err := s.m.trash.Discard(at)
	if err != nil {
		return err
	}
	s.waste = append(s.waste, waste)
	return os.Mkdir(at, 0o700)
}

// chooseSandboxPaths places the workspace of an exclusive slot at the requested path, and gives its
// tenant the sandbox's temporary directory. If the sandbox's root is not writable, or no path is
// requested, both are in the slot's directory.
func (s *level) chooseSandboxPaths(p CreateParams) {
	u := &s.setup
	if p.Workspace == "" {
		return
	}
	workspace := freePath(string(p.Workspace))
	if os.Mkdir(workspace, 0o755) != nil {
		return
	}
	if u.Switch && os.Lchown(workspace, int(u.UID), int(u.GID)) != nil {
		return
	}
	u.Workspace = workspace
	if isDir("/tmp") {
		u.Tmp = "/tmp"
	}
}

// freePath returns path, or a similar path that does not exist yet.
func freePath(path string) string {
	for at, n := path, 2; ; at, n = fmt.Sprint(path, n), n+1 {
		if _, err := os.Lstat(at); err != nil {
			return at
		}
	}
}

// layerDirName is the directory of a slot's changes in a root of its own.
const layerDirName = "layer"

// parts returns the slot's own directories.
func (s *level) parts() []string {
	if s.setup.View.Layer != "" {
		return []string{layerDirName}
	}
	return directories.Names
}
