package isolation

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"hermes-exec/runner/internal/bounded"
	"hermes-exec/runner/internal/rights"
)

// OwnRootArg makes `runner agent OwnRootArg DIRECTORY` try, in namespaces of its own, whether a
// slot can have a root of its own with DIRECTORY for its layer.
const OwnRootArg = "--own-root"

// TryOwnRoot returns nil if slots can have roots of their own, or the reason why not. directory
// must be an empty directory where slots will be kept.
func TryOwnRoot(f Facts, directory string) error {
	switch {
	case !f.Root:
		return errors.New("the runner is not root")
	case !f.Switch && !f.OneID():
		return errors.New(f.Reasons[UID])
	case f.Caps&(1<<rights.CapSetfcap) == 0:
		return errors.New("root without CAP_SETFCAP")
	}
	for _, part := range []string{"lower", "layer", "root"} {
		if err := os.Mkdir(filepath.Join(directory, part), 0o755); err != nil {
			return err
		}
	}
	_, err := tryIn(MethodIdentity, f.IDs.middle(), OwnRootArg, directory)
	if err == nil {
		return nil
	}
	if hint := namespaceHint(err); hint != "" {
		return fmt.Errorf("%w (%s)", err, hint)
	}
	return err
}

// namespaceHint returns which setting to change after a user namespace or a mount in it was
// refused, as far as the kernel's settings show.
func namespaceHint(err error) string {
	setting := func(path string) string {
		text, _ := bounded.ReadWhole(path, bounded.SettingSize)
		return strings.Trim(string(text), "\x00\n ")
	}
	profile := setting("/proc/self/attr/current")
	switch {
	case strings.HasSuffix(profile, "(enforce)"):
		return "the sandbox's AppArmor profile " + profile +
			" may refuse it: start the sandbox with apparmor=unconfined"
	case setting("/proc/sys/kernel/apparmor_restrict_unprivileged_userns") == "1":
		return "the host's sysctl kernel.apparmor_restrict_unprivileged_userns=1 refuses it: set it to 0"
	case setting("/proc/sys/user/max_user_namespaces") == "0":
		return "the host's sysctl user.max_user_namespaces=0 refuses it: raise it"
	case setting("/proc/sys/kernel/unprivileged_userns_clone") == "0":
		return "the host's sysctl kernel.unprivileged_userns_clone=0 refuses it: set it to 1"
	case strings.Contains(err.Error(), syscall.EINVAL.Error()):
		return "a third overlay over two, as in a container within a container, is one too many: keep the inner " +
			"engine's data in a volume"
	case errors.Is(err, syscall.EPERM):
		return "the sandbox's seccomp profile refuses user namespaces, or this kernel does"
	}
	return ""
}
