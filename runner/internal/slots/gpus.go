package slots

import (
	"maps"
	"slices"
	"syscall"

	"hermes-exec/runner/internal/gpus"
	"hermes-exec/runner/internal/ipc"
	"hermes-exec/runner/internal/isolation"
)

// chooseGPUs gives the slot the requested GPUs of the host: their device nodes, the groups of these
// nodes, and the variables that select the GPUs, which it adds to the environment of the request.
func (s *slot) chooseGPUs(p *CreateParams) error {
	if p.GPUs == nil {
		return nil
	}
	host := gpus.Find("")
	own, err := host.Select(*p.GPUs)
	if err != nil {
		return failure("bad_request", "%v", err)
	}
	if n := p.GPUs.PerSlot; n > 0 {
		if own, s.gpus, err = gpus.Claim(own, n); err != nil {
			return failure("no_gpu", "%v", err)
		}
	}
	s.devices = host.Nodes(*p.GPUs, own)
	groups, err := findDeviceGroups(s.setup.Switch, s.devices, own)
	if err != nil {
		return err
	}
	s.setup.Groups = append(s.setup.Groups, groups...)
	hidden := s.setup.Level == isolation.Namespaces || s.setup.Level == isolation.Landlock
	env := map[string]ipc.Bytes{}
	maps.Copy(env, p.Env)
	for name, value := range host.Variables(*p.GPUs, own, hidden) {
		env[name] = ipc.Bytes(value)
	}
	p.Env = env
	return nil
}

// findDeviceGroups returns the groups that a user of a slot needs for the device nodes, and checks
// that it can use its own GPUs. Without own users, slots have the runner's user and its groups.
func findDeviceGroups(ownUsers bool, nodes []string, own []gpus.GPU) (groups []uint32, err error) {
	for _, node := range nodes {
		needed := slices.ContainsFunc(own, func(gpu gpus.GPU) bool { return gpu.Nodes[0] == node })
		var st syscall.Stat_t
		if err := syscall.Stat(node, &st); err != nil {
			return nil, failure("bad_request", "gpus: %s: %v", node, err)
		}
		switch {
		case !ownUsers:
			if err := syscall.Access(node, readWrite); err != nil && needed {
				return nil, failure("bad_request", "gpus: the runner's user cannot open %s (%v): add the user to the "+
					"node's group", node, err)
			}
		case st.Mode&readWrite == readWrite:
		case st.Mode>>3&readWrite == readWrite && st.Gid != 0:
			groups = append(groups, st.Gid)
		case needed:
			return nil, failure("bad_request", "gpus: slots cannot open %s, of mode %#o and group %d: give it the "+
				"mode 0666, or the mode 0660 and a group other than 0", node, st.Mode&0o777, st.Gid)
		}
	}
	slices.Sort(groups)
	return slices.Compact(groups), nil
}

// readWrite is a permission of files.
const readWrite = 6
