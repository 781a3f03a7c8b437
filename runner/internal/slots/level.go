package slots

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sort"
	"strings"

	"hermes-exec/runner/internal/accounts"
	"hermes-exec/runner/internal/cgroup"
	"hermes-exec/runner/internal/gpus"
	"hermes-exec/runner/internal/ipc"
	"hermes-exec/runner/internal/isolation"
	"hermes-exec/runner/internal/limits"
	"hermes-exec/runner/internal/rootfs"
	"hermes-exec/runner/internal/users"
)

// fifoDirName is the directory of the FIFOs to which a slot's shells write their state.
const fifoDirName = "fifos"

// level is the part of a slot that is chosen at its creation and stays until its end.
type level struct {
	m      *Manager
	id     string
	dir    string
	facts  SlotFacts
	setup  isolation.Setup
	env    []string
	method isolation.Method
	ownUID bool // nobody else has the slot's uid
	named  bool // the sandbox's passwd has a line for the slot

	image   *rootfs.Image // below the slot's own root; nil: it has none
	maxPIDs int64         // limit of processes by their numbers, 0 for none
	modes   modes
	fifos   string // the path in the slot
	limited diskChoice

	onHost   bool     // the sandbox is a host with files of others
	readOnly []string // paths on the host that the slot may read

	devices []string    // device nodes of the slot's GPUs
	gpus    gpus.Claims // the GPUs that no other slot may use
}

func (s *level) user() accounts.User {
	return accounts.User{Name: s.setup.UserName, UID: s.setup.UID, GID: s.setup.GID, Home: s.setup.Home}
}

// leavesWithOthers reports whether the slot's user is not root and sees directories of the sandbox
// in which others leave files too.
func (s *level) leavesWithOthers() bool {
	return s.setup.Switch && s.setup.UID != 0 && s.image == nil && s.setup.Level != isolation.Exclusive
}

// choose decides the level and the user.
func (s *level) choose(p CreateParams) error {
	f := s.m.facts
	level := p.Level
	if level == "" || level == "auto" {
		level = f.Highest
	}
	if p.OwnRoot {
		image, err := s.m.ownRootImage(p.Setup)
		if ipc.IsShortage(err) {
			return failure("exhausted", "a root of its own cannot be made for the slot now: %v", err)
		}
		if err != nil {
			return failure("own_root", "a slot cannot have a root of its own here: %v", err)
		}
		level, s.image = isolation.Namespaces, image
	}
	floor := p.Floor
	if floor == "" {
		floor = isolation.None
	}
	switch {
	case level == isolation.Exclusive && p.PrivateRoot:
		return s.newIsolationError("a slot gets a whole sandbox only in a container or VM that was made for it")
	case s.image == nil && !f.Has(level):
		return s.newIsolationError(fmt.Sprintf("%s is not available here: %s", level, f.Reasons[level]))
	case isolation.IsBelow(level, floor):
		return s.newIsolationError(fmt.Sprintf("slots reach the level %s here, below the lowest accepted level, %s "+
			"(%s). Enable a higher level, use a backend that starts containers, or accept it with min_isolation=%q",
			level, floor, reasons(f), level))
	case level != isolation.Exclusive && p.PrivateRoot && f.Root && !f.Switch:
		return s.newIsolationError("on a host the runner must leave uid 0, and it cannot: " + f.Reasons[isolation.UID])
	}
	s.setup = isolation.Setup{Slot: s.id, Boot: s.m.boot, Level: level, ServePID: os.Getpid(), Since: s.m.since,
		Filter: s.m.filter, OneID: f.OneID()}
	s.modes = modes{own: 0o700, tmp: 0o700}
	s.onHost = p.PrivateRoot
	for _, path := range p.ReadOnlyPaths {
		s.readOnly = append(s.readOnly, string(path))
	}
	if level == isolation.Namespaces {
		s.method = f.Method
	}
	if s.image != nil {
		s.method = isolation.MethodIdentity
	}
	return s.chooseUser(p)
}

func (s *level) newIsolationError(why string) error { return failure("isolation", "%s", why) }

func reasons(f isolation.Facts) string {
	var out []string
	for level, why := range f.Reasons {
		if why != "" {
			out = append(out, level+": "+why)
		}
	}
	sort.Strings(out)
	return strings.Join(out, "; ")
}

func (s *level) chooseUser(p CreateParams) error {
	f := s.m.facts
	level := s.setup.Level
	if s.image != nil {
		return s.imageUser(p.User)
	}
	s.ownUID = f.Switch && (level == isolation.Namespaces || level == isolation.UID || p.PrivateRoot &&
		level != isolation.Exclusive)
	if s.ownUID {
		uid, err := s.m.ids.Allocate()
		if err != nil {
			return err
		}
		s.setup.UID, s.setup.GID, s.setup.Groups, s.setup.CountingUID = uid, uid, []uint32{}, uid
		s.setup.UserName = "slot"
		if level != isolation.Namespaces {
			s.setup.UserName = fmt.Sprintf("slot%d", s.m.ids.Index(uid))
		}
	} else if err := s.sandboxUser(p.User); err != nil {
		return err
	}
	s.setup.Switch = f.Switch
	if level == isolation.Namespaces && (s.method == isolation.MethodSelf || s.method == isolation.MethodBwrap) {
		s.setup.Switch, s.setup.NamespaceMost = false, limits.NamespaceShare()
	}
	// Where the slot has the sandbox or a uid to itself, that shows which processes are the slot's. `id` then shows no
	// group without a name.
	if s.setup.Switch && f.Setgroups && level != isolation.Exclusive && !s.ownUID {
		s.setup.Track = s.m.ids.Track
	}
	return nil
}

// renewUser gives the slot's next holder a uid that nobody had before, if the slot has a user of
// its own. Files that a holder has left anywhere then do not belong to the next.
func (s *level) renewUser() error {
	if !s.ownUID {
		return nil
	}
	uid, err := s.m.ids.Allocate()
	if err != nil {
		return err
	}
	before, u, shell := s.user(), &s.setup, s.shellPath()
	u.UID, u.GID, u.CountingUID = uid, uid, uid
	s.facts.UID, s.facts.GID = int(uid), int(uid)
	v := &u.View
	v.Passwd = strings.Replace(v.Passwd, accounts.PasswdLine(before, shell), accounts.PasswdLine(s.user(), shell), 1)
	v.Group = strings.Replace(v.Group, accounts.GroupLine(before), accounts.GroupLine(s.user()), 1)
	if s.named {
		return users.ChangeName(s.user(), shell)
	}
	return nil
}

// sandboxUser sets the user of commands if the slot has no uid of its own: the image's user in a
// sandbox, else the runner's user.
func (s *level) sandboxUser(name string) error {
	uid, gid := uint32(os.Geteuid()), uint32(os.Getegid())
	level := s.setup.Level
	asked := level == isolation.Exclusive || level == isolation.None || level == isolation.Landlock
	if s.m.facts.Switch && asked {
		user, err := accounts.LookupUser(name)
		if err != nil {
			return failure("user", "%v", err)
		}
		s.setup.UID, s.setup.GID, s.setup.Groups, s.setup.UserName = user.UID, user.GID, user.Groups, user.Name
		s.setup.Home = accounts.HomeOf(user)
	} else {
		own, err := accounts.LookupUser(fmt.Sprint(uid))
		if err != nil {
			return failure("user", "%v", err)
		}
		s.setup.UID, s.setup.GID, s.setup.UserName, s.setup.Home = uid, gid, own.Name, accounts.HomeOf(own)
		if name != "" && asked {
			user, err := accounts.LookupUser(name)
			if err != nil || user.UID != uid {
				return failure("user", "the runner is uid %d and cannot become %q", uid, name)
			}
		}
	}
	if level == isolation.Namespaces && uid != 0 {
		s.setup.UserName = "slot"
	}
	if level == isolation.Exclusive {
		s.modes = modes{own: 0o755, tmp: 0o777 | os.ModeSticky}
	}
	return nil
}

// choosePaths decides at which paths the slot sees its directories.
func (s *level) choosePaths(p CreateParams) error {
	if s.image != nil {
		s.chooseOwnRootPaths(p)
		s.limited.place(&s.setup.View, s.dir)
		return nil
	}
	at := func(part string) string { return filepath.Join(s.dir, part) }
	s.setup.Workspace, s.setup.Tmp, s.fifos = at("workspace"), at("tmp"), at(fifoDirName)
	if s.setup.Level != isolation.Exclusive {
		s.setup.Home = at("home")
	}
	switch s.setup.Level {
	case isolation.Namespaces:
		if !p.Network && !s.m.facts.Loopback {
			return s.newIsolationError("a network of its own would have no loopback interface (no CAP_NET_ADMIN)")
		}
		s.chooseViewPaths(p)
		s.limited.place(&s.setup.View, s.dir)
	case isolation.UID, isolation.Landlock, isolation.None:
		s.setup.View.Network = true
		if err := s.checkReachable(); err != nil {
			return err
		}
	default:
		s.setup.View.Network = true
		s.chooseSandboxPaths(p)
	}
	if !p.Network && s.setup.View.Network && s.setup.Level != isolation.Exclusive && p.PrivateRoot {
		return s.newIsolationError("the network can be turned off only with namespaces: " +
			s.m.facts.Reasons[isolation.Namespaces])
	}
	if s.setup.Level == isolation.UID && !p.PrivateRoot {
		s.named = users.AddName(s.user(), s.shellPath()) == nil
	}
	return nil
}

func (s *level) chooseViewPaths(p CreateParams) {
	at := func(part string) string { return filepath.Join(s.dir, part) }
	v := rootfs.View{
		Kind: rootfs.ViewSandbox, Staging: at("root"), BaseDir: s.m.base, Hostname: "slot", Network: p.Network,
		Pids:    true,
		ByBwrap: s.method == isolation.MethodBwrap,
	}
	if p.PrivateRoot {
		v.Kind = rootfs.ViewPrivate
		s.setup.Workspace, s.setup.Home, s.setup.Tmp = "/workspace", "/home/"+s.setup.UserName, "/tmp"
		s.fifos = "/run/hermes-exec/" + fifoDirName
		v.ReadOnly, v.Devices = s.readOnly, s.devices
	} else if isDir("/tmp") && !isInside(s.m.base, "/tmp") {
		s.setup.Tmp = "/tmp"
	}
	if v.ImageReadOnly = !p.PrivateRoot && !s.setup.Switch; v.ImageReadOnly {
		v.Shared = s.m.shared
	}
	v.Binds = []rootfs.Bind{{Source: at("workspace"), Target: s.setup.Workspace, OnDisk: true},
		{Source: at("home"), Target: s.setup.Home, OnDisk: true},
		{Source: at("tmp"), Target: s.setup.Tmp, OnDisk: true},
		{Source: at(fifoDirName), Target: s.fifos}}
	if p.PrivateRoot || isDir("/var/tmp") && !isInside(s.m.base, "/var/tmp") {
		v.Binds = append(v.Binds, rootfs.Bind{Source: at("var-tmp"), Target: "/var/tmp", OnDisk: true})
	}
	user := s.user()
	if p.PrivateRoot {
		v.Passwd, v.Group = accounts.PasswdFile(user, s.shellPath()), accounts.GroupFile(user)
	} else if user.UID != 0 { // the image has a line for root
		v.Passwd, v.Group = accounts.FileWithLine("/etc/passwd", accounts.PasswdLine(user, s.shellPath())),
			accounts.FileWithLine("/etc/group", accounts.GroupLine(user))
	}
	s.setup.View = v
}

// checkReachable checks that the slot's user can reach its directories.
func (s *level) checkReachable() error {
	if !s.setup.Switch {
		return nil
	}
	for dir := s.m.base; ; dir = filepath.Dir(dir) {
		st, err := os.Stat(dir)
		if err != nil {
			return failure("internal", "%v", err)
		}
		if st.Mode().Perm()&0o001 == 0 {
			return s.newIsolationError(fmt.Sprintf("other users cannot pass through %s, so that a slot with a uid "+
				"of its own could not reach its directories", dir))
		}
		if dir == "/" {
			return nil
		}
	}
}

func isDir(path string) bool {
	st, err := os.Stat(path)
	return err == nil && st.IsDir()
}

func isInside(path, dir string) bool { return path == dir || strings.HasPrefix(path, dir+"/") }

// chooseLimits decides how each limit is enforced.
func (s *level) chooseLimits(p CreateParams) error {
	l := p.Limits
	s.setup.Limits = l
	joins, how, err := cgroup.Make(s.m.facts.Cgroups, s.m.groupName(s.id), l)
	if err != nil {
		return failure("internal", "%v", err)
	}
	s.setup.Cgroups = joins
	isCounted := s.setup.UID != 0 || s.m.facts.OneID() // no limit of processes holds for the machine's root
	ownUID := isCounted && (s.setup.Level == isolation.UID || s.setup.Level == isolation.Namespaces ||
		s.setup.Switch && p.PrivateRoot)
	byRlimit := func(name, text string) {
		s.setup.RLimits = append(s.setup.RLimits, name)
		how[name] = text
	}
	ownNamespace := s.method == isolation.MethodSelf && limits.CountsByNamespace()
	// Elsewhere the limit would also count other processes of the user, so it needs an explicit request.
	unasked := slices.Contains(p.DefaultLimits, "pids") && !s.ownUID && !ownNamespace
	switch {
	case l.PIDs == nil || how["pids"] != "" || !ownUID || !hasRlimits || unasked:
	case ownNamespace:
		byRlimit("pids", "rlimit of the uid in its user namespace")
	default:
		byRlimit("pids", "rlimit of the uid")
	}
	if l.PIDs != nil && how["pids"] == "" && s.image != nil && limits.HasOwnPIDLimit() {
		s.maxPIDs = *l.PIDs
		how["pids"] = "numbers of the pid namespace"
	}
	if l.OpenFiles != nil && hasRlimits {
		byRlimit("open_files", "rlimit, each process")
	}
	if l.FileSizeMB != nil && hasRlimits {
		byRlimit("file_size_mb", "rlimit, each process")
	}
	if l.CPUTimeS != nil && hasRlimits {
		byRlimit("cpu_time_s", "rlimit, each process")
	}
	why := fmt.Sprintf("cgroups: %s", s.m.facts.Cgroup)
	if l.DiskMB != nil {
		choice, reason, err := chooseDisk(s, p)
		if err != nil {
			return err
		}
		if s.limited = choice; reason == "" {
			how["disk_mb"] = choice.String()
		} else {
			why += "; disk: " + reason
		}
	}
	var missing []string
	for name, wanted := range limitFlags(l) {
		if !wanted || how[name] != "" {
			continue
		}
		if name == "memory_mb" && p.BestEffortLimits && hasRlimits {
			s.setup.Watch = *l.MemoryMB << 20
			how[name] = "watchdog over resident memory"
			continue
		}
		if !slices.Contains(p.DefaultLimits, name) {
			missing = append(missing, name)
		}
		how[name] = "not enforced"
	}
	sort.Strings(missing)
	if len(missing) > 0 && !p.BestEffortLimits {
		return failure("limit", "%s cannot be enforced for a slot here (%s)", strings.Join(missing, ", "), why)
	}
	s.facts.Isolation.Limits = how
	return nil
}

func limitFlags(l ipc.Limits) map[string]bool {
	return map[string]bool{
		"cpus": l.CPUs != nil, "memory_mb": l.MemoryMB != nil, "pids": l.PIDs != nil, "disk_mb": l.DiskMB != nil,
		"open_files":   l.OpenFiles != nil,
		"file_size_mb": l.FileSizeMB != nil, "cpu_time_s": l.CPUTimeS != nil,
	}
}
