package slots

import (
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"hermes-exec/runner/internal/gpus"
	"hermes-exec/runner/internal/isolation"
)

const deviceGroup = 4242

// makeGPUs makes device nodes like those of two GPUs, which behave like /dev/zero. The second GPU
// is for a group only.
func makeGPUs(t *testing.T) {
	t.Helper()
	if os.Geteuid() != 0 {
		var st syscall.Stat_t
		if err := syscall.Stat("/dev/nvidia1", &st); err != nil || st.Gid != deviceGroup {
			t.Skip("only root makes device nodes; TestAsAnOrdinaryUser makes them for this user")
		}
		return
	}
	if _, err := os.Lstat("/dev/nvidia0"); err == nil {
		t.Skip("this host has GPUs")
	}
	if err := os.Mkdir("/dev/nvidia-caps", 0o755); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.Remove("/dev/nvidia-caps") })
	for _, name := range []string{"nvidia0", "nvidia1", "nvidiactl", "nvidia-uvm", "nvidia-caps/nvidia-cap1"} {
		node := "/dev/" + name
		if err := syscall.Mknod(node, syscall.S_IFCHR|0o666, 1<<8|5); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { os.Remove(node) })
		if err := os.Chmod(node, 0o666); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Chown("/dev/nvidia1", 0, deviceGroup); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod("/dev/nvidia1", 0o660); err != nil {
		t.Fatal(err)
	}
}

// tryNodes prints the nodes that a slot can read and write.
const tryNodes = `for n in /dev/nvidia0 /dev/nvidia1 /dev/nvidiactl /dev/nvidia-uvm /dev/nvidia-caps/nvidia-cap1; do
	(test -c $n && exec 3<>$n && head -c 1 <&3 >/dev/null && echo x >&3) 2>/dev/null && echo ${n#/dev/}; done; true`

func TestGPUsAreUsableAtEachLevel(t *testing.T) {
	makeGPUs(t)
	others := "nvidiactl\nnvidia-uvm\nnvidia-caps/nvidia-cap1"
	ways := map[string]isolation.Facts{}
	for _, level := range levels() {
		ways[level] = probed()
	}
	if path, err := exec.LookPath("bwrap"); err == nil && os.Geteuid() != 0 {
		f := probed()
		f.Method, f.BwrapPath, f.Bubblewrap = isolation.MethodBwrap, path, true
		ways["bubblewrap"] = f
	}
	for level, facts := range ways {
		t.Run(level, func(t *testing.T) {
			if level == "bubblewrap" {
				level = isolation.Namespaces
			}
			shared := gpus.Request{Count: 1}
			want := map[string]string{"a": "nvidia0\n" + others, "b": "nvidia0\n" + others}
			if os.Geteuid() == 0 { // the other user is in no group
				shared = gpus.Request{}
				want["a"] = "nvidia0\nnvidia1\n" + others
				want["b"] = want["a"]
			}
			b := newSandbox(t, facts)
			for _, slot := range []string{"a", "b"} {
				b.create(CreateParams{Slot: slot, Level: level, Network: true, PrivateRoot: true, GPUs: &shared})
				if out := b.sh(slot, tryNodes); out != want[slot] {
					t.Errorf("%s: %q", slot, out)
				}
				out := b.sh(slot, "test -d /sys/class && test -d /sys/devices && ! test -w /sys && echo yes")
				if out != "yes" {
					t.Errorf("/sys: %q", out)
				}
			}
		})
	}
}

func TestSlotHasGPUsOfItsOwn(t *testing.T) {
	makeGPUs(t)
	if os.Geteuid() != 0 {
		t.Skip("the second GPU is for a group in which this user is not")
	}
	for _, level := range levels() {
		t.Run(level, func(t *testing.T) {
			b := newSandbox(t, probed())
			params := func(slot string) CreateParams {
				return CreateParams{Slot: slot, Level: level, Network: true, PrivateRoot: true,
					GPUs: &gpus.Request{PerSlot: 1}}
			}
			b.create(params("a"))
			b.create(params("b"))
			if _, err := b.Create(t.Context(), params("c")); kind(err) != "no_gpu " ||
				!strings.Contains(err.Error(), "0 of the 2 GPUs are free") {
				t.Error(err)
			}
			variables := "echo $CUDA_VISIBLE_DEVICES $CUDA_DEVICE_ORDER"
			others := "\nnvidiactl\nnvidia-uvm\nnvidia-caps/nvidia-cap1"
			for range 2 { // also for the next holder
				if level == isolation.Namespaces || level == isolation.Landlock {
					for slot, own := range map[string]string{"a": "nvidia0", "b": "nvidia1"} {
						if out := b.sh(slot, tryNodes); out != own+others {
							t.Errorf("%s: %q", slot, out)
						}
						if out := b.sh(slot, variables); out != "0 PCI_BUS_ID" {
							t.Errorf("%s: %q", slot, out)
						}
					}
				} else {
					for slot, want := range map[string]string{"a": "0 PCI_BUS_ID", "b": "1 PCI_BUS_ID"} {
						if out := b.sh(slot, variables); out != want {
							t.Errorf("%s: %q", slot, out)
						}
					}
				}
				for _, slot := range []string{"a", "b"} {
					if result, err := b.Reset(t.Context(), slot); err != nil || !result.Clean {
						t.Error(result, err)
					}
				}
			}
			if _, err := b.Destroy(t.Context(), "a"); err != nil {
				t.Error(err)
			}
			b.create(params("c"))
			if out := b.sh("c", "echo < /dev/nvidia0 && "+variables); out != "0 PCI_BUS_ID" && out != "\n0 PCI_BUS_ID" {
				t.Errorf("%q", out)
			}
		})
	}
}

func TestGPUThatSlotsCannotOpenIsRefused(t *testing.T) {
	makeGPUs(t)
	if os.Geteuid() == 0 {
		if err := os.Chown("/dev/nvidia1", 0, 0); err != nil {
			t.Fatal(err)
		}
	}
	b := newSandbox(t, probed())
	_, err := b.Create(t.Context(), CreateParams{Slot: "a", Network: true, PrivateRoot: true, GPUs: &gpus.Request{}})
	if err == nil || kind(err) != "bad_request " || !strings.Contains(err.Error(), "cannot open /dev/nvidia1") {
		t.Error(err)
	}
}
