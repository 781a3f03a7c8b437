package slots

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"hermes-exec/runner/internal/disk"
	"hermes-exec/runner/internal/diskspace"
	"hermes-exec/runner/internal/ipc"
	"hermes-exec/runner/internal/isolation"
	"hermes-exec/runner/internal/layers"
	"hermes-exec/runner/internal/link"
	"hermes-exec/runner/internal/private"
	"hermes-exec/runner/internal/proc"
	"hermes-exec/runner/internal/shared"
	"hermes-exec/runner/internal/users"
	"hermes-exec/runner/internal/wipe"
)

// Manager holds the slots of one sandbox.
type Manager struct {
	base  string
	dir   *private.Directory // base, held open
	facts isolation.Facts
	exe   string
	boot  string
	ids   *users.Allocator
	trash *wipe.Trash
	since uint64

	layers *layers.Store
	spare  link.Spare // for any slot

	mu      sync.Mutex
	slots   map[string]*slot
	closed  bool
	onExit  func(slot string, e ipc.Exit)
	onDeath func(slot string, why *ipc.Error)

	cleaner *shared.Cleaner
	ownRoot ownRootState
	disks   diskTrial
	shared  []string // directories of the sandbox to which all slots write
	network string   // the owner of the sandbox's network
	filter  bool     // the engine does not restrict the system calls of a sandbox

	exclusive    atomic.Bool
	disk         diskspace.FullMark
	monitor      atomic.Pointer[diskspace.Monitor] // of the last slot: all share the same file systems
	setupTimeout time.Duration                     // how long an agent may take to get ready
}

// home returns the directory of a container that belongs to the runner.
func (m *Manager) home() string {
	if above := filepath.Dir(filepath.Dir(m.base)); above != "/" {
		return above
	}
	return m.base
}

// NewManager keeps slots below baseDir, which it makes if it is missing. selfExe is a path of this
// program from which an agent can be started.
func NewManager(baseDir string, facts isolation.Facts, selfExe string) (*Manager, error) {
	mode := os.FileMode(0o700)
	if facts.Switch {
		mode = 0o711 // slots with uids of their own pass through it
	}
	dir, err := private.Open(baseDir, mode, "slots")
	if err != nil {
		return nil, fmt.Errorf("slots: %w", err)
	}
	base := dir.Path // a slot's view needs real paths
	disk.Spread(filepath.Join(base, "slots"))
	trash, err := wipe.NewTrash(filepath.Join(base, "trash"))
	if err != nil {
		return nil, err
	}
	random := make([]byte, 8)
	_, _ = rand.Read(random) // it never fails
	m := &Manager{
		base: base, dir: dir, facts: facts, exe: selfExe, since: proc.BootTicks(), boot: hex.EncodeToString(random),
		ids: users.NewAllocator(facts), trash: trash, slots: map[string]*slot{},
		onExit: func(string, ipc.Exit) {}, onDeath: func(string, *ipc.Error) {},
		setupTimeout: setupTimeout,
	}
	m.layers = newLayerStore(m)
	m.spare.NewOwner = m.ids.Allocate
	m.monitor.Store(&diskspace.Monitor{})
	m.monitor.Load().Survey(os.Geteuid() == 0, base)
	m.cleaner = shared.New(m.ids, m.home(), nil)
	if err := m.recordGroups(); err != nil {
		return nil, fmt.Errorf("slots: %w", err)
	}
	return m, nil
}

// SetShared sets the directories of the sandbox to which slots with roots of their own write too.
// It must be called before the first slot is made.
func (m *Manager) SetShared(directories []string) { m.shared = directories }

// SetMounts sets the directories that the configuration mounts. Files that slots leave there stay.
// It must be called before the first slot is made.
func (m *Manager) SetMounts(dirs []string) { m.cleaner = shared.New(m.ids, m.home(), dirs) }

// SetNetworkOwner names the owner of the sandbox's network if that is not the sandbox. It must be
// called before the first slot is made.
func (m *Manager) SetNetworkOwner(whose string) { m.network = whose }

// EnableFilter keeps exclusive slots from system calls that a container may not make, for engines
// that do not. It must be called before the first slot is made.
func (m *Manager) EnableFilter() { m.filter = true }

// groupName returns the name of a slot's cgroups.
func (m *Manager) groupName(slot string) string { return "hermes-exec-" + m.boot + "-" + slot }

// recordGroups writes the path prefixes of all cgroups of this sandbox to a file, one a line, so
// that they can be removed after the sandbox was killed.
func (m *Manager) recordGroups() error {
	var text []byte
	for _, group := range m.facts.Cgroups {
		text = append(text, filepath.Join(group.Dir, m.groupName(""))+"\n"...)
	}
	if text == nil {
		return nil
	}
	return os.WriteFile(filepath.Join(m.base, "groups"), text, 0o600)
}

// OnExit sets the function that is called for each command that ended. It must not block. OnExit
// must be called before the first slot is made.
func (m *Manager) OnExit(f func(slot string, e ipc.Exit)) { m.onExit = f }

// OnDeath sets the function that is called for each agent that ended unexpectedly.
func (m *Manager) OnDeath(f func(slot string, why *ipc.Error)) { m.onDeath = f }

// Create makes a slot. Its agent is started at first use.
func (m *Manager) Create(ctx context.Context, p CreateParams) (SlotFacts, error) {
	if err := cmp.Or(p.check(), m.dir.Verify()); err != nil {
		return SlotFacts{}, err
	}
	m.mu.Lock()
	if m.closed {
		m.mu.Unlock()
		return SlotFacts{}, failure("slot_closed", "the runner is shutting down")
	}
	if _, exists := m.slots[p.Slot]; exists {
		m.mu.Unlock()
		return SlotFacts{}, failure("bad_request", "slot %q exists", p.Slot)
	}
	s := &slot{level: level{m: m, id: p.Slot, dir: filepath.Join(m.base, "slots", p.Slot)}}
	s.mu.Lock()
	defer s.mu.Unlock()
	m.slots[p.Slot] = s
	m.mu.Unlock()
	err := s.create(p)
	if err == nil {
		err = ctx.Err()
	}
	if err != nil || p.Trial {
		s.gone = true
		m.mu.Lock()
		delete(m.slots, p.Slot)
		m.mu.Unlock()
		return s.facts, errors.Join(err, s.removeTraces())
	}
	s.unused = true
	if s.setup.Level == isolation.Exclusive {
		m.exclusive.Store(true)
	}
	return s.facts, nil
}

func (m *Manager) slot(id string) (*slot, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	s := m.slots[id]
	if s == nil {
		return nil, failure("no_slot", "no slot %q", id)
	}
	return s, nil
}

// IsExclusive reports whether a slot has, or had, the whole sandbox.
func (m *Manager) IsExclusive() bool { return m.exclusive.Load() }

// Facts returns the facts of a slot as Create returned them, with the uid of the current holder.
func (m *Manager) Facts(id string) (SlotFacts, error) {
	s, err := m.slot(id)
	if err != nil {
		return SlotFacts{}, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.facts, nil
}

// Agent returns the running agent of a slot, and starts one if there is none.
func (m *Manager) Agent(ctx context.Context, id string) (*link.Agent, error) {
	s, err := m.slot(id)
	if err != nil {
		return nil, err
	}
	return s.agent(ctx)
}

// Reset ends everything in a slot and empties it.
func (m *Manager) Reset(ctx context.Context, id string) (ResetResult, error) {
	s, err := m.slot(id)
	if err != nil {
		return ResetResult{}, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.gone {
		return ResetResult{}, failure("no_slot", "no slot %q", id)
	}
	if s.setup.Level == isolation.Exclusive {
		return ResetResult{}, failure("bad_request", "an exclusive slot cannot be reset: replace its sandbox")
	}
	return s.reset(ctx), nil
}

// Destroy ends everything in a slot and forgets it.
func (m *Manager) Destroy(ctx context.Context, id string) (ipc.Receipt, error) {
	s, err := m.slot(id)
	if err != nil {
		return ipc.Receipt{}, err
	}
	return m.destroy(ctx, s)
}

func (m *Manager) destroy(ctx context.Context, s *slot) (ipc.Receipt, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.gone {
		return ipc.Receipt{Handles: []string{}}, nil
	}
	receipt := s.end(ctx)
	err := s.removeTraces()
	s.gone = true
	m.mu.Lock()
	delete(m.slots, s.id)
	m.mu.Unlock()
	if err != nil {
		return receipt, failure("internal", "slot %s: %v", s.id, err)
	}
	return receipt, nil
}

// DiskNearlyFull reports whether a file system that a slot shares with others is nearly full. It
// holds no lock: a network file system that is down does not answer.
func (m *Manager) DiskNearlyFull(id string) bool {
	s, err := m.slot(id)
	return err == nil && m.disk.NearlyFull(&s.monitor)
}

// DiskHasRoom reports whether the file systems that slots share have room for another tenant.
func (m *Manager) DiskHasRoom() bool {
	return m.disk.HasRoom(m.monitor.Load())
}

// openFilesTimeout is how long an agent may take to measure removed files that are open.
const openFilesTimeout = 5 * time.Second

// Disk reports whether the slot or its neighbours have filled a nearly full file system. prepared
// means that the slot is ready for its tenant: existing files do not count as the tenant's.
func (m *Manager) Disk(ctx context.Context, id string, refused, prepared bool) (diskspace.Facts, error) {
	s, err := m.slot(id)
	if err != nil {
		return diskspace.Facts{}, err
	}
	if prepared {
		s.monitor.SurveyAgain()
	}
	m.mu.Lock()
	neighbours := len(m.slots)
	m.mu.Unlock()
	held := func() (use diskspace.Usage, err error) {
		if h, _ := s.current(); h != nil {
			ctx, cancel := context.WithTimeout(ctx, openFilesTimeout)
			defer cancel()
			_, err = h.Call(ctx, ipc.OpRemovedFiles, struct{}{}, &use)
		}
		use.Bytes += s.diskUse()
		return use, err
	}
	return s.monitor.FindCause(refused, neighbours, held, s.ownPaths()...), nil
}

// KillAll ends every process of a slot except its agent.
func (m *Manager) KillAll(ctx context.Context, id string) (ipc.Receipt, error) {
	s, err := m.slot(id)
	if err != nil {
		return ipc.Receipt{}, err
	}
	h, _ := s.current()
	if h == nil {
		return ipc.Receipt{Handles: []string{}}, nil
	}
	var receipt ipc.Receipt
	_, err = h.Call(ctx, ipc.OpKillAll, struct{}{}, &receipt)
	return receipt, err
}

// Close ends everything of every slot and removes the base directory.
func (m *Manager) Close(ctx context.Context) ipc.Receipt {
	m.mu.Lock()
	m.closed = true
	all := make([]*slot, 0, len(m.slots))
	for _, s := range m.slots {
		all = append(all, s)
	}
	m.mu.Unlock()
	m.spare.Close()
	total := ipc.Receipt{Handles: []string{}}
	var mu sync.Mutex
	var wg sync.WaitGroup
	gate := make(chan struct{}, 8)
	for _, s := range all {
		wg.Add(1)
		go func() {
			defer wg.Done()
			gate <- struct{}{}
			defer func() { <-gate }()
			receipt, err := m.destroy(ctx, s)
			mu.Lock()
			defer mu.Unlock()
			total.Add(receipt)
			if err != nil {
				fmt.Fprintln(os.Stderr, "runner:", err)
			}
		}()
	}
	wg.Wait()
	m.cleaner.Finish()
	for _, problem := range m.dir.Remove() {
		fmt.Fprintln(os.Stderr, "runner: left behind:", problem)
	}
	return total
}
