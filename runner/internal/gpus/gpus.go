package gpus

import (
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"hermes-exec/runner/internal/bounded"
)

// Request selects GPUs of the host. Without Count and Names it selects all.
type Request struct {
	Count   int      `json:"count,omitempty"`    // the first so many
	Names   []string `json:"names,omitempty"`    // indexes, and UUIDs or their beginnings
	PerSlot int      `json:"per_slot,omitempty"` // GPUs of each slot, which no other slot uses; 0: slots share all
}

// GPU is one GPU of a host.
type GPU struct {
	Index int      // as nvidia-smi counts
	UUID  string   // "": unknown
	Nodes []string // device nodes; programs need the first one
}

// Host has the GPUs of a host.
type Host struct {
	GPUs   []GPU
	NVIDIA bool     // GPUs are NVIDIA's; the render nodes of other makers count only where there are none
	Common []string // device nodes that programs need for every GPU
	Others []string // render nodes of no known GPU
}

// proc describes NVIDIA's GPUs by PCI address.
const proc = "/proc/driver/nvidia/gpus"

// Find returns the GPUs of the host whose root directory is root, "" for this one.
func Find(root string) Host {
	h := Host{}
	renders := map[string][]string{} // by PCI address
	for _, name := range names(root + "/dev/dri") {
		if _, isNode := number(name, "renderD"); isNode {
			device, _ := os.Readlink(root + "/sys/class/drm/" + name + "/device")
			address := filepath.Base(device)
			renders[address] = append(renders[address], "/dev/dri/"+name)
		}
	}
	addresses, uuids := readNVIDIA(root)
	var minors []int
	for _, name := range names(root + "/dev") {
		minor, isGPU := number(name, "nvidia")
		switch {
		case isGPU:
			minors = append(minors, minor)
		case name == "kfd":
			h.Common = append(h.Common, "/dev/kfd")
		case strings.HasPrefix(name, "nvidia-caps"): // directories
			for _, each := range names(root + "/dev/" + name) {
				h.Common = append(h.Common, "/dev/"+name+"/"+each)
			}
		case strings.HasPrefix(name, "nvidia"):
			h.Common = append(h.Common, "/dev/"+name)
		}
	}
	slices.SortFunc(minors, func(a, b int) int { return cmp.Or(cmp.Compare(addresses[a], addresses[b]), a-b) })
	for _, minor := range minors {
		nodes := append([]string{fmt.Sprintf("/dev/nvidia%d", minor)}, renders[addresses[minor]]...)
		delete(renders, addresses[minor])
		h.GPUs = append(h.GPUs, GPU{Index: len(h.GPUs), UUID: uuids[minor], Nodes: nodes})
	}
	h.NVIDIA = len(h.GPUs) > 0
	for _, nodes := range renders {
		h.Others = append(h.Others, nodes...)
	}
	slices.SortFunc(h.Others, func(a, b string) int { return cmp.Or(len(a)-len(b), cmp.Compare(a, b)) })
	if !h.NVIDIA {
		for _, node := range h.Others {
			h.GPUs = append(h.GPUs, GPU{Index: len(h.GPUs), Nodes: []string{node}})
		}
		h.Others = nil
	}
	return h
}

// readNVIDIA returns the PCI addresses and UUIDs of NVIDIA's GPUs by the minor number of the node.
func readNVIDIA(root string) (addresses, uuids map[int]string) {
	addresses, uuids = map[int]string{}, map[int]string{}
	for _, address := range names(root + proc) {
		text, err := bounded.ReadWhole(root+proc+"/"+address+"/information", bounded.SettingSize)
		if err != nil {
			continue
		}
		facts := map[string]string{}
		for line := range strings.Lines(string(text)) {
			name, value, _ := strings.Cut(line, ":")
			facts[strings.TrimSpace(name)] = strings.TrimSpace(value)
		}
		minor, err := strconv.Atoi(facts["Device Minor"])
		if err != nil {
			continue
		}
		addresses[minor] = address
		if uuid := facts["GPU UUID"]; !strings.Contains(uuid, "?") { // unknown until the GPU was used
			uuids[minor] = uuid
		}
	}
	return addresses, uuids
}

// names returns the sorted names of a directory, none if it cannot be read.
func names(dir string) []string {
	var out []string
	_ = bounded.EachName(dir, func(name string) (more bool) {
		out = append(out, name)
		return true
	})
	slices.Sort(out)
	return out
}

// number returns N of a name PREFIX+N.
func number(name, prefix string) (n int, ok bool) {
	digits, ok := strings.CutPrefix(name, prefix)
	n, err := strconv.Atoi(digits)
	return n, ok && err == nil && n >= 0 && strconv.Itoa(n) == digits
}

// Select returns the requested GPUs.
func (h Host) Select(r Request) ([]GPU, error) {
	var chosen []GPU
	switch {
	case len(h.GPUs) == 0:
		return nil, fmt.Errorf("gpus: this host has neither device nodes /dev/nvidia0, /dev/nvidia1 … nor " +
			"/dev/dri/renderD128 …: install the driver of the GPU (NVIDIA's makes the nodes when root runs " +
			"nvidia-smi), or leave gpus and gpus_per_slot out")
	case len(r.Names) > 0:
		for _, name := range r.Names {
			gpu, err := h.find(name)
			if err != nil {
				return nil, err
			}
			if slices.ContainsFunc(chosen, func(other GPU) bool { return other.Index == gpu.Index }) {
				return nil, fmt.Errorf("gpus: GPU %d is named twice: name it once", gpu.Index)
			}
			chosen = append(chosen, gpu)
		}
	case r.Count > len(h.GPUs):
		return nil, fmt.Errorf("gpus: %d were requested, and this host has %d (%s): request fewer", r.Count,
			len(h.GPUs), h.describe())
	case r.Count > 0:
		chosen = h.GPUs[:r.Count]
	default:
		chosen = h.GPUs
	}
	if r.PerSlot > len(chosen) {
		return nil, fmt.Errorf("gpus_per_slot: %d were requested, and there are %d (%s): request fewer", r.PerSlot,
			len(chosen), describe(chosen))
	}
	return chosen, nil
}

// find returns the GPU with an index or a UUID, of which the beginning is enough.
func (h Host) find(name string) (GPU, error) {
	var matches []GPU
	for _, gpu := range h.GPUs {
		if name == strconv.Itoa(gpu.Index) || gpu.UUID != "" && name != "" && strings.HasPrefix(gpu.UUID, name) {
			matches = append(matches, gpu)
		}
	}
	switch {
	case len(matches) == 1:
		return matches[0], nil
	case len(matches) > 1:
		return GPU{}, fmt.Errorf("gpus: %q is the beginning of several UUIDs: %s", name, describe(matches))
	}
	return GPU{}, fmt.Errorf("gpus: this host has no GPU %q: name some of %s", name, h.describe())
}

func (h Host) describe() string { return describe(h.GPUs) }

// describe names GPUs for an error.
func describe(gpus []GPU) string {
	var out []string
	for _, gpu := range gpus {
		text := fmt.Sprintf("%d: %s", gpu.Index, gpu.Nodes[0])
		if gpu.UUID != "" {
			text += " " + gpu.UUID
		}
		out = append(out, text)
	}
	return strings.Join(out, ", ")
}

// Nodes returns the device nodes that a slot with these GPUs needs.
func (h Host) Nodes(r Request, own []GPU) []string {
	var out []string
	for _, gpu := range own {
		out = append(out, gpu.Nodes...)
	}
	out = append(out, h.Common...)
	if r.isAll() {
		out = append(out, h.Others...)
	}
	return out
}

func (r Request) isAll() bool { return r.Count == 0 && len(r.Names) == 0 && r.PerSlot == 0 }

// Variables returns the environment that makes programs use these GPUs. Libraries number the GPUs
// whose nodes they can open, from 0: hidden means that these are no others than own.
func (h Host) Variables(r Request, own []GPU, hidden bool) map[string]string {
	if r.isAll() {
		return nil
	}
	var indexes, positions []string
	for position, gpu := range own {
		index := gpu.Index
		if hidden {
			index = 0
			for _, other := range own {
				if other.Index < gpu.Index {
					index++
				}
			}
		}
		indexes = append(indexes, strconv.Itoa(index))
		positions = append(positions, strconv.Itoa(position))
	}
	if h.NVIDIA {
		return map[string]string{"CUDA_VISIBLE_DEVICES": strings.Join(indexes, ","), "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
	}
	// HIP reads CUDA_VISIBLE_DEVICES too. It counts the GPUs that ROCR_VISIBLE_DEVICES leaves.
	return map[string]string{"ROCR_VISIBLE_DEVICES": strings.Join(indexes, ","),
		"CUDA_VISIBLE_DEVICES": strings.Join(positions, ",")}
}
