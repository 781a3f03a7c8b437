package agent

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	"hermes-exec/runner/internal/accounts"
	"hermes-exec/runner/internal/cgroup"
	"hermes-exec/runner/internal/initproc"
	"hermes-exec/runner/internal/ipc"
	"hermes-exec/runner/internal/isolation"
	"hermes-exec/runner/internal/limits"
	"hermes-exec/runner/internal/reach"
	"hermes-exec/runner/internal/rights"
	"hermes-exec/runner/internal/rootfs"
	"hermes-exec/runner/internal/seccomp"
	"hermes-exec/runner/internal/tenants"
)

const reservedThreads = 6

// prepare sets this process up for the slot. It runs once, before any command of a tenant.
func (a *agent) prepare(s isolation.Setup) (isolation.Ready, error) {
	began := time.Now()
	if a.ready.Load() {
		return isolation.Ready{}, &ipc.Error{Kind: "internal", Message: "the agent is set up already"}
	}
	a.setup = s
	reach.HideRunner(s.ServePID)
	// Processes may enter the sandbox of an exclusive slot from outside, and processes of an
	// earlier agent may have another parent.
	rooted := s.Level != isolation.Exclusive && !s.Successor && (s.View.Pids || initproc.IsSubreaper())
	a.childLimits = limits.NeedsChildLimits(s.Limits)
	a.user = accounts.User{Name: s.UserName, UID: s.UID, GID: s.GID, Home: s.Home, Groups: s.Groups}
	a.tenants = tenants.New(s, a.user, a.table, rooted)
	// The cgroups are opened by their paths in the sandbox, which the view may hide.
	a.quotas = cgroup.OpenQuotas(s.Cgroups)
	a.table.OOM.Open(s.Cgroups, a.quotas, s.Watch, s.Level == isolation.Exclusive)
	joins, err := a.openGroups()
	if err != nil {
		return isolation.Ready{}, isolationError(err)
	}
	lastPID, err := s.View.Enter()
	if errors.Is(err, rootfs.ErrInUse) {
		return isolation.Ready{}, &ipc.Error{Kind: isolation.InUse, Message: err.Error()}
	}
	if err != nil {
		return isolation.Ready{}, isolationError(err)
	}
	limits.SetNamespace(s.NamespaceMost)
	if s.View.Pids && (os.Getpid() != 1 || os.Getppid() != 0) {
		return isolation.Ready{}, isolationError(fmt.Errorf("pid %d is not the first process of a pid namespace",
			os.Getpid()))
	}
	if err := limits.SetProcess(s.Limits, s.RLimits); err != nil {
		return isolation.Ready{}, isolationError(err)
	}
	if s.AsImage() || !s.Switch {
		if err := limits.LowerOpenFiles(); err != nil {
			return isolation.Ready{}, isolationError(err)
		}
	}
	own, keepCaps := s.OwnRoot(), func(caps ...int) error { return rights.KeepCaps(s.UID, caps...) }
	if !own { // Otherwise its threads prepare themselves first, with rights that the process still has.
		if err := a.dropCaps(keepCaps); err != nil {
			return isolation.Ready{}, isolationError(err)
		}
	}
	if err := a.makeThreads(joins); err != nil {
		return isolation.Ready{}, isolationError(err)
	}
	for _, j := range joins {
		_ = j.Close()
	}
	go a.table.Reap()
	if s.Watch > 0 {
		go a.tenants.WatchMemory(s.Watch)
	}
	initproc.ReserveThreads(reservedThreads)
	if own {
		if err := rootfs.ReserveFirst(lastPID); err != nil {
			return isolation.Ready{}, isolationError(err)
		}
		if err := a.dropCaps(keepCaps); err != nil {
			return isolation.Ready{}, isolationError(err)
		}
	}
	// Not earlier: from here on this process queues no signals for itself.
	if err := limits.SetCounters(s.CountingUID != 0); err != nil {
		return isolation.Ready{}, isolationError(err)
	}
	a.trimmer = initproc.NewIdleTrimmer()
	if s.View.Pids {
		initproc.IgnoreSignals()
	}
	a.ready.Store(true)
	openLanes(a.gates[:a.setup.SpawnLanes], a.gates[a.setup.SpawnLanes:])
	return isolation.Ready{PID: os.Getpid(), SetupMS: float64(time.Since(began).Microseconds()) / 1000}, nil
}

func isolationError(err error) error { return ipc.RefusalError(err) }

// capsFor returns the capabilities that the agent needs to start commands as the slot's user and to
// kill them.
func capsFor(s isolation.Setup) []int {
	if s.OwnRoot() {
		return append(slices.Clone(s.Caps), rights.CapSetuid, rights.CapSetgid, rights.CapKill)
	}
	if s.Switch {
		return []int{rights.CapSetuid, rights.CapSetgid, rights.CapKill, rights.CapSetpcap}
	}
	return nil
}

// dropCaps drops all other capabilities. The agent of an exclusive slot keeps root's own.
func (a *agent) dropCaps(drop func(...int) error) error {
	if a.setup.Level == isolation.Exclusive {
		return nil
	}
	return drop(capsFor(a.setup)...)
}

// openGroups opens the files that put a thread or a child into the slot's cgroups.
func (a *agent) openGroups() (tasks []*os.File, err error) {
	for _, j := range a.setup.Cgroups {
		if j.V2 {
			if a.groupFD, err = os.Open(j.Dir); err != nil {
				return nil, fmt.Errorf("cgroup: %w", err)
			}
			continue
		}
		f, err := os.OpenFile(j.Dir+"/tasks", os.O_WRONLY, 0)
		if err != nil {
			return nil, fmt.Errorf("cgroup: %w", err)
		}
		tasks = append(tasks, f)
	}
	return tasks, nil
}

func (a *agent) makeThreads(tasks []*os.File) error {
	s := a.setup
	user := func() error {
		if err := a.dropCaps(rights.ThreadKeepCaps); err != nil {
			return err
		}
		if !s.Switch {
			return nil
		}
		return rights.ThreadFS(s.UID, s.GID, s.Groups)
	}
	err := a.startLanes(func() error { return a.prepareSpawner(tasks) }, func() error {
		if s.OwnRoot() {
			if err := rootfs.HideProcFromThread(); err != nil {
				return err
			}
		}
		return user()
	})
	if err != nil {
		return err
	}
	return a.tenants.StartThreads(func() error {
		if s.Level == isolation.Exclusive {
			return nil
		}
		return user()
	})
}

func (a *agent) prepareSpawner(tasks []*os.File) error {
	initproc.UsePreciseTimers()
	rights.ThreadOwnKeyring()
	for _, f := range tasks {
		if _, err := f.WriteAt([]byte("0"), 0); err != nil {
			return fmt.Errorf("cgroup: %w", err)
		}
	}
	if a.setup.OneID {
		if err := rights.ThreadNoNewPrivs(); err != nil {
			return err
		}
		if err := seccomp.ThreadIgnoreOwners(); err != nil {
			return err
		}
	}
	if a.setup.Level == isolation.Exclusive {
		// root may do anything in its sandbox except trace the runner.
		_ = rights.ThreadDropBounding(rights.CapSysPtrace)
		if a.setup.Filter {
			if err := rights.ThreadNoNewPrivs(); err != nil {
				return err
			}
			if err := seccomp.ThreadAsInContainer(true, false); err != nil {
				return err
			}
		}
		return rights.ThreadNoInheritedCaps()
	}
	if a.setup.OwnRoot() {
		if err := rights.ThreadBound(a.setup.Caps...); err != nil {
			return err
		}
		if err := seccomp.ThreadAsInContainer(a.setup.View.Network, true); err != nil {
			return err
		}
		if err := a.dropCaps(rights.ThreadKeepCaps); err != nil {
			return err
		}
		if !a.setup.Switch {
			return nil
		}
		return rights.ThreadFS(a.setup.UID, a.setup.GID, a.setup.Groups)
	}
	if err := a.dropCaps(rights.ThreadKeepCaps); err != nil {
		return err
	}
	if a.setup.Switch {
		if err := rights.ThreadBound(); err != nil {
			return err
		}
	}
	if err := rights.ThreadNoNewPrivs(); err != nil {
		return err
	}
	if a.setup.View.Pids && !a.setup.View.Network {
		if err := seccomp.ThreadNoOtherNetworks(); err != nil {
			return err
		}
	}
	return nil
}
