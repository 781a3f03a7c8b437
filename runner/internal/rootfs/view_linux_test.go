package rootfs

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestEtcIsAnAllowList(t *testing.T) {
	root := t.TempDir()
	if err := copyEtc(root, "/etc/shadow", nil); err != nil {
		t.Fatal(err)
	}
	secret := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(secret, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := copyEtc(root, secret, nil); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{"/etc/shadow", secret} {
		if _, err := os.Lstat(root + path); err == nil {
			t.Errorf("%s was copied although others may not read it", path)
		}
	}
	for _, list := range [][]string{etcFiles, etcDirs, etcSingles} {
		for _, name := range list {
			if strings.Contains(name, "shadow") || strings.Contains(name, "private") || strings.Contains(name, "ssh") ||
				strings.Contains(name, "sudo") {
				t.Errorf("%s is on the list", name)
			}
		}
	}
}
