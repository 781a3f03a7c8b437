package rootfs

import (
	"strings"
	"testing"

	"hermes-exec/runner/internal/proc"
)

func FuzzMountTable(f *testing.F) {
	f.Add(`/a\040b\134`, "rw,nosuid,relatime")
	f.Add(`\`, "")
	f.Add(`\777\08`, ",,")
	f.Fuzz(func(t *testing.T, path, options string) {
		if out := proc.Unescape(path); len(out) > len(path) || !strings.Contains(path, `\`) && out != path {
			t.Fatalf("%q became %q", path, out)
		}
		_ = mountFlags(options)
	})
}

func TestUnescapeMount(t *testing.T) {
	for in, want := range map[string]string{`/a`: "/a", `/a\040b`: "/a b", `/a\134b`: `/a\b`, `/a\9`: `/a\9`} {
		if got := proc.Unescape(in); got != want {
			t.Errorf("%q: %q", in, got)
		}
	}
}
