package environ

import (
	"maps"
	"os"
	"sort"
	"strings"

	"hermes-exec/runner/internal/ipc"
	"hermes-exec/runner/internal/isolation"
)

const defaultPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// inheritedVariables are the variables that a slot on a host gets from the runner's environment.
var inheritedVariables = []string{"LANG", "LANGUAGE", "LC_ALL", "LC_CTYPE", "TZ"}

// Base returns the base environment of a slot, which may be on a host: in a sandbox the image's
// variables, then the pool's, then those that describe the slot.
func Base(onHost bool, pool map[string]ipc.Bytes, setup isolation.Setup) []string {
	env := map[string]string{}
	if onHost {
		for _, key := range inheritedVariables {
			if v, ok := os.LookupEnv(key); ok {
				env[key] = v
			}
		}
	} else {
		for _, entry := range os.Environ() {
			if key, value, ok := strings.Cut(entry, "="); ok && key != "" {
				env[key] = value
			}
		}
	}
	for _, key := range []string{"PWD", "OLDPWD", "SHLVL", "_"} {
		delete(env, key)
	}
	slot := map[string]string{"HOME": setup.Home, "TMPDIR": setup.Tmp, "USER": setup.UserName,
		"LOGNAME": setup.UserName}
	for key := range slot {
		if own := env[key]; own != "" && key != "HOME" && setup.AsImage() {
			slot[key] = own // the image sets another value
		}
	}
	for key, value := range pool {
		env[key] = string(value)
	}
	maps.Copy(env, slot)
	if env["PATH"] == "" {
		env["PATH"] = defaultPath
	}
	if env["LANG"] == "" && env["LC_ALL"] == "" {
		env["LANG"] = "C.UTF-8"
	}
	out := make([]string, 0, len(env))
	for key, value := range env {
		out = append(out, key+"="+value)
	}
	sort.Strings(out)
	return out
}
