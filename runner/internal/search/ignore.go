package search

import (
	"os"
	"strings"

	"hermes-exec/runner/internal/bounded"
)

// maxIgnoreFile bounds how much of one ignore file is read.
const maxIgnoreFile = 1 << 20

// rule is one line of an ignore file, in git's meaning.
type rule struct {
	glob     *globPattern
	negated  bool
	dirOnly  bool
	anchored bool // matched against the path from the ignore file's folder, else against the name
}

// ignoreSet is the rules of one folder; outer are those of the folder above.
type ignoreSet struct {
	outer *ignoreSet
	base  string // absolute path of the folder, without a final slash
	rules []rule
}

var ignoreNames = []string{".gitignore", ".ignore"} // the later one wins

// loadIgnores adds the rules of dir to those above it.
func loadIgnores(outer *ignoreSet, dir string) *ignoreSet {
	var rules []rule
	for _, name := range ignoreNames {
		rules = append(rules, parseIgnore(readSmall(dir+"/"+name))...)
	}
	if len(rules) == 0 {
		return outer
	}
	return &ignoreSet{outer: outer, base: strings.TrimSuffix(dir, "/"), rules: rules}
}

// readSmall reads a regular file and gives nothing for anything else.
func readSmall(path string) string {
	data, _, err := bounded.ReadFile(path, maxIgnoreFile)
	if err != nil {
		return ""
	}
	return string(data)
}

// parentIgnores loads the rules of the folders above dir as far as the top of
// its repository; without one they do not count.
func parentIgnores(dir string) *ignoreSet {
	var above []string
	for d := dir; ; d = parentOf(d) {
		if _, err := os.Lstat(d + "/.git"); err == nil {
			break
		}
		if d == "/" || d == "" {
			return nil
		}
		above = append(above, parentOf(d))
	}
	var set *ignoreSet
	for i := len(above) - 1; i >= 0; i-- {
		set = loadIgnores(set, above[i])
	}
	return set
}

func parentOf(path string) string {
	if i := strings.LastIndexByte(path, '/'); i > 0 {
		return path[:i]
	}
	return "/"
}

func parseIgnore(text string) []rule {
	var rules []rule
	for line := range strings.SplitSeq(text, "\n") {
		line = trimIgnored(strings.TrimSuffix(line, "\r"))
		if line == "" || line[0] == '#' {
			continue
		}
		var r rule
		if line[0] == '!' {
			r.negated, line = true, line[1:]
		}
		if rest, ok := strings.CutSuffix(line, "/"); ok {
			r.dirOnly, line = true, rest
		}
		r.anchored = strings.Contains(line, "/")
		line = strings.TrimPrefix(line, "/")
		if line == "" {
			continue
		}
		if rest, ok := strings.CutPrefix(line, "**/"); ok && !strings.Contains(rest, "/") {
			r.anchored, line = false, rest
		}
		// git knows no braces: they are ordinary characters there.
		line = strings.NewReplacer("{", `\{`, "}", `\}`).Replace(line)
		glob, err := compileGlob(line)
		if err != nil {
			continue // git passes over what it cannot read, too
		}
		r.glob = glob
		rules = append(rules, r)
	}
	return rules
}

// trimIgnored takes spaces off the end unless a backslash keeps them.
func trimIgnored(line string) string {
	for strings.HasSuffix(line, " ") && !strings.HasSuffix(line, `\ `) {
		line = line[:len(line)-1]
	}
	return line
}

// ignored asks the rules from the innermost folder out, each file from its end.
func (s *ignoreSet) ignored(path, name string, isDir bool) bool {
	for ; s != nil; s = s.outer {
		relative := strings.TrimPrefix(path[len(s.base):], "/")
		for i := len(s.rules) - 1; i >= 0; i-- {
			r := &s.rules[i]
			if r.dirOnly && !isDir {
				continue
			}
			subject := name
			if r.anchored {
				subject = relative
			}
			if r.glob.match(subject) {
				return !r.negated
			}
		}
	}
	return false
}
