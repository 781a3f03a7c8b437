package rootfs

import (
	"os"
	"path/filepath"
	"strings"
)

// BwrapArgs returns the arguments, from argv[0] on, that make v and then run program, a path of the
// sandbox, with args.
func (v View) BwrapArgs(program string, args []string) []string {
	out := []string{"bwrap", "--unshare-user", "--unshare-pid", "--unshare-ipc", "--unshare-uts", "--as-pid-1",
		"--die-with-parent", "--hostname", v.Hostname}
	if !v.Network {
		out = append(out, "--unshare-net")
	}
	const inside = "/run/hermes-exec/runner"
	if v.Kind == ViewSandbox {
		whole := "--bind"
		if v.ImageReadOnly {
			whole = "--ro-bind"
		}
		out = append(out, whole, "/", "/", "--tmpfs", v.BaseDir, "--dev", "/dev")
		for _, shared := range v.Shared {
			out = append(out, "--bind", shared, shared)
		}
	} else {
		out = append(out, "--dev", "/dev", "--dir", "/run", "--dir", "/home", "--symlink", "/run", "/var/run")
		for _, p := range systemPaths {
			out = append(out, bwrapShow(p)...)
		}
		for _, name := range append(append([]string{}, etcFiles...), etcSingles...) {
			out = append(out, "--ro-bind-try", "/etc/"+name, "/etc/"+name)
		}
		for _, name := range etcDirs {
			out = append(out, "--ro-bind-try", "/etc/"+name, "/etc/"+name)
		}
	}
	for _, node := range v.Devices {
		out = append(out, "--dev-bind", node, node)
	}
	if len(v.Devices) > 0 {
		out = append(out, "--ro-bind", "/sys", "/sys")
	}
	out = append(out, "--proc", "/proc")
	for _, b := range v.Binds {
		out = append(out, "--bind", b.Source, b.Target)
	}
	for _, p := range v.ReadOnly {
		out = append(out, bwrapReadOnly(p)...)
	}
	out = append(out, "--ro-bind", v.Staging+"/passwd", "/etc/passwd", "--ro-bind", v.Staging+"/group", "/etc/group")
	if v.Kind == ViewSandbox {
		out = append(out, "--remount-ro", v.BaseDir, "--", program)
	} else {
		out = append(out, "--ro-bind", program, inside, "--remount-ro", "/", "--", inside)
	}
	return append(out, args...)
}

func bwrapShow(p string) []string {
	if to, err := os.Readlink(p); err == nil {
		return []string{"--symlink", to, p}
	}
	return []string{"--ro-bind-try", p, p}
}

func bwrapReadOnly(p string) []string {
	real, err := filepath.EvalSymlinks(p)
	if err != nil || real == p {
		return []string{"--ro-bind", p, p}
	}
	out := []string{"--ro-bind", real, real}
	if !isVisible(p) && !strings.HasPrefix(p, real+"/") {
		out = append(out, "--symlink", real, p)
	}
	return out
}

// PrepareBwrap writes the files that BwrapArgs refers to.
func (v View) PrepareBwrap() error {
	if err := write(v.Staging+"/passwd", v.Passwd); err != nil {
		return err
	}
	return write(v.Staging+"/group", v.Group)
}
