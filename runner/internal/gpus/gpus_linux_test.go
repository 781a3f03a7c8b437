package gpus

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
)

// hostWith returns the GPUs of a root directory with these files; "to: PATH" is a link.
func hostWith(t *testing.T, files map[string]string) Host {
	t.Helper()
	root := t.TempDir()
	for path, content := range files {
		at := root + path
		if err := os.MkdirAll(filepath.Dir(at), 0o755); err != nil {
			t.Fatal(err)
		}
		var err error
		if target, isLink := strings.CutPrefix(content, "to: "); isLink {
			err = os.Symlink(target, at)
		} else {
			err = os.WriteFile(at, []byte(content), 0o644)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return Find(root)
}

func information(uuid string, minor string) string {
	return "Model: \t\t NVIDIA T4\nGPU UUID: \t " + uuid + "\nDevice Minor: \t " + minor + "\n"
}

// twoOfNVIDIA is a host on which PCI addresses and minor numbers have different orders, with an
// integrated GPU of another maker.
var twoOfNVIDIA = map[string]string{
	"/dev/nvidia0": "", "/dev/nvidia1": "", "/dev/nvidiactl": "", "/dev/nvidia-uvm": "", "/dev/nvidia-uvm-tools": "",
	"/dev/nvidia-modeset": "", "/dev/nvidia-caps/nvidia-cap1": "", "/dev/null": "", "/dev/nvme0": "",
	"/dev/dri/card0": "", "/dev/dri/renderD128": "", "/dev/dri/renderD129": "",
	"/proc/driver/nvidia/gpus/0000:3b:00.0/information": information("GPU-aaaa-1", "1"),
	"/proc/driver/nvidia/gpus/0000:af:00.0/information": information("GPU-aabb-0", "0"),
	"/sys/class/drm/renderD128/device":                  "to: ../../../0000:00:02.0",
	"/sys/class/drm/renderD129/device":                  "to: ../../../0000:af:00.0",
}

var common = []string{"/dev/nvidia-caps/nvidia-cap1", "/dev/nvidia-modeset", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools",
	"/dev/nvidiactl"}

func TestGPUsAreCountedByPCIAddress(t *testing.T) {
	h := hostWith(t, twoOfNVIDIA)
	want := Host{NVIDIA: true, Common: common, Others: []string{"/dev/dri/renderD128"}, GPUs: []GPU{
		{0, "GPU-aaaa-1", []string{"/dev/nvidia1"}}, {1, "GPU-aabb-0", []string{"/dev/nvidia0", "/dev/dri/renderD129"}},
	}}
	if !reflect.DeepEqual(h, want) {
		t.Errorf("%+v", h)
	}
}

func TestSlotSeesItsOwnGPUs(t *testing.T) {
	h := hostWith(t, twoOfNVIDIA)
	both := []string{"/dev/nvidia0", "/dev/nvidia1"}
	const first = "/dev/dri/renderD129" // of /dev/nvidia0
	for name, c := range map[string]struct {
		request Request
		nodes   []string // besides the common nodes
		global  string
		hidden  string
	}{
		"all":       {Request{}, append([]string{"/dev/dri/renderD128", first}, both...), "", ""},
		"one":       {Request{Count: 1}, []string{"/dev/nvidia1"}, "0", "0"},
		"by index":  {Request{Names: []string{"1"}}, []string{"/dev/nvidia0", first}, "1", "0"},
		"by UUID":   {Request{Names: []string{"GPU-aab"}}, []string{"/dev/nvidia0", first}, "1", "0"},
		"own":       {Request{PerSlot: 2}, []string{"/dev/nvidia1", "/dev/nvidia0", first}, "0,1", "0,1"},
		"in order":  {Request{Names: []string{"1", "0"}}, append([]string{first}, both...), "1,0", "1,0"},
		"every one": {Request{Count: 2}, []string{"/dev/nvidia1", "/dev/nvidia0", first}, "0,1", "0,1"},
	} {
		own, err := h.Select(c.request)
		if err != nil {
			t.Fatal(name, err)
		}
		nodes := map[string]bool{}
		for _, node := range append(c.nodes, common...) {
			nodes[node] = true
		}
		got := map[string]bool{}
		for _, node := range h.Nodes(c.request, own) {
			got[node] = true
		}
		if !maps.Equal(nodes, got) {
			t.Errorf("%s: %v", name, got)
		}
		global, hidden := h.Variables(c.request, own, false), h.Variables(c.request, own, true)
		if global["CUDA_VISIBLE_DEVICES"] != c.global || hidden["CUDA_VISIBLE_DEVICES"] != c.hidden {
			t.Errorf("%s: %v, %v", name, global, hidden)
		}
	}
}

func TestRequestThatCannotBeMetIsRefused(t *testing.T) {
	h := hostWith(t, twoOfNVIDIA)
	for want, request := range map[string]Request{
		"3 were requested, and this host has 2 (0: /dev/nvidia1 GPU-aaaa-1": {Count: 3},
		`no GPU "2"`:                       {Names: []string{"2"}},
		`no GPU "GPU-b"`:                   {Names: []string{"GPU-b"}},
		`no GPU ""`:                        {Names: []string{""}},
		`"GPU-aa" is the beginning`:        {Names: []string{"GPU-aa"}},
		"GPU 1 is named twice":             {Names: []string{"1", "GPU-aabb"}},
		"gpus_per_slot: 2 were requested":  {Names: []string{"1"}, PerSlot: 2},
		"gpus_per_slot: 3 were requested,": {PerSlot: 3},
	} {
		if _, err := h.Select(request); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: %v", request, err)
		}
	}
	none := hostWith(t, map[string]string{"/dev/nvidiactl": "", "/dev/null": "", "/dev/kfd": ""})
	if _, err := none.Select(Request{}); err == nil || !strings.Contains(err.Error(), "/dev/nvidia0") {
		t.Error(err)
	}
}

func TestUnknownUUIDsAndAddressesLeaveTheMinorNumbers(t *testing.T) {
	h := hostWith(t, map[string]string{"/dev/nvidia10": "", "/dev/nvidia9": "", "/dev/nvidia": "", "/dev/nvidia01": "",
		"/proc/driver/nvidia/gpus/0000:af:00.0/information": "GPU UUID: GPU-????????\nDevice Minor: x\n"})
	if len(h.GPUs) != 2 || h.GPUs[0].Nodes[0] != "/dev/nvidia9" || h.GPUs[0].UUID != "" {
		t.Errorf("%+v", h)
	}
}

func TestRenderNodesAreGPUsWithoutNVIDIA(t *testing.T) {
	h := hostWith(t, map[string]string{"/dev/kfd": "", "/dev/dri/renderD128": "", "/dev/dri/renderD129": "",
		"/sys/class/drm/renderD128/device": "to: ../0000:03:00.0",
		"/sys/class/drm/renderD129/device": "to: ../0000:04:00.0"})
	request := Request{Names: []string{"1"}}
	own, err := h.Select(request)
	if err != nil || !reflect.DeepEqual(h.Nodes(request, own), []string{"/dev/dri/renderD129", "/dev/kfd"}) {
		t.Errorf("%+v %v", own, err)
	}
	want := map[string]string{"ROCR_VISIBLE_DEVICES": "1", "CUDA_VISIBLE_DEVICES": "0"}
	if got := h.Variables(request, own, false); !maps.Equal(got, want) {
		t.Error(got)
	}
}

func TestGPUBelongsToOneSlotAtATime(t *testing.T) {
	var all []GPU
	for i := range 3 {
		all = append(all, GPU{Index: i, Nodes: []string{fmt.Sprint(t.Name(), i)}})
	}
	first, held, err := Claim(all, 2)
	if err != nil || len(first) != 2 {
		t.Fatal(first, err)
	}
	if _, _, err := Claim(all, 2); err == nil || !strings.Contains(err.Error(), "1 of the 3 GPUs are free") {
		t.Error(err)
	}
	last, heldLast, err := Claim(all, 1) // the failed claim has given it back
	if err != nil || last[0].Index != 2 {
		t.Error(last, err)
	}
	heldLast.Release()
	held.Release()
	if again, held, err := Claim(all, 3); err != nil || len(again) != 3 {
		t.Error(again, err)
	} else {
		held.Release()
	}
}
