package rootfs

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
)

// etcFiles and etcDirs are the parts of /etc that programs need. An allow-list keeps unknown
// secrets out.
var (
	etcFiles = []string{
		"hosts", "resolv.conf", "nsswitch.conf", "host.conf", "gai.conf", "networks", "services", "protocols", "rpc",
		"ethertypes",
		"ld.so.cache", "ld.so.conf", "localtime", "timezone", "locale.alias", "locale.conf", "profile", "bash.bashrc",
		"bashrc", "inputrc",
		"zshrc", "environment", "shells", "mime.types", "magic", "mailcap", "os-release", "debian_version",
		"lsb-release", "redhat-release",
		"alpine-release", "issue", "login.defs", "gitconfig", "wgetrc", "mke2fs.conf", "manpath.config", "papersize",
		"vimrc", "nanorc",
	}
	etcDirs = []string{
		"ld.so.conf.d", "alternatives", "profile.d", "bash_completion.d", "ssl/certs", "ca-certificates",
		"pki/tls/certs", "pki/ca-trust",
		"crypto-policies", "terminfo", "fonts", "perl", "python3", "python3.11", "python3.12", "python3.13",
		"java-17-openjdk", "java-21-openjdk",
		"java-11-openjdk", "maven", "ImageMagick-6", "ImageMagick-7", "X11/fonts", "xdg", "OpenCL", "vulkan", "glvnd",
		"openmpi", "lynx", "vim",
		"emacs", "texmf", "groff", "R", "octave.conf.d", "libreoffice", "chromium", "chromium.d", "php", "ruby",
	}
	etcSingles = []string{"ssl/openssl.cnf", "X11/rgb.txt", "pki/tls/openssl.cnf", "pki/tls/cert.pem", "ssl/cert.pem"}
)

const largestEtcFile = 1 << 20

func (v View) etc(root string) error {
	if err := makeDir(root + "/etc"); err != nil {
		return err
	}
	buffer := make([]byte, 32<<10)
	for _, name := range append(append([]string{}, etcFiles...), etcSingles...) {
		if err := copyEtc(root, "/etc/"+name, buffer); err != nil {
			return err
		}
	}
	for _, name := range etcDirs {
		if p := "/etc/" + name; isDir(p) {
			if err := showReadOnly(root, p); err != nil {
				return err
			}
		}
	}
	for name, content := range map[string]string{"passwd": v.Passwd, "group": v.Group, "hostname": v.Hostname + "\n"} {
		if err := write(root+"/etc/"+name, content); err != nil {
			return err
		}
	}
	return os.Symlink("/proc/self/mounts", root+"/etc/mtab")
}

// copyEtc copies one small file. A link into the system paths stays a link; any other is followed
// now, because its target will be hidden.
func copyEtc(root, path string, buffer []byte) error {
	if to, err := os.Readlink(path); err == nil {
		if !filepath.IsAbs(to) {
			to = filepath.Join(filepath.Dir(path), to)
		}
		if isVisible(to) {
			if err := makeDir(filepath.Dir(root + path)); err != nil {
				return err
			}
			return os.Symlink(to, root+path)
		}
	}
	in, err := os.Open(path)
	if errors.Is(err, os.ErrNotExist) || errors.Is(err, os.ErrPermission) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("view: %w", err)
	}
	defer in.Close()
	st, err := in.Stat()
	if err != nil || !st.Mode().IsRegular() || st.Size() > largestEtcFile || st.Mode().Perm()&0o004 == 0 {
		return nil
	}
	if err := makeDir(filepath.Dir(root + path)); err != nil {
		return err
	}
	out, err := os.OpenFile(root+path, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o644)
	if err != nil {
		return fmt.Errorf("view: %w", err)
	}
	// Without ReadFrom, which would allocate a buffer for each file.
	_, err = io.CopyBuffer(struct{ io.Writer }{out}, io.LimitReader(in, largestEtcFile), buffer)
	if err := errors.Join(err, out.Close()); err != nil {
		return fmt.Errorf("view: %w", err)
	}
	return nil
}
