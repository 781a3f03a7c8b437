package search

import (
	"fmt"
	"os"
	"strings"

	"hermes-exec/runner/internal/bounded"
)

// Limits for the ignore files of a directory and its parents together. Rules above them are not
// applied, which the result reports.
const (
	maxIgnoreRules = 20_000
	maxIgnoreBytes = 1 << 20
	// maxIgnoreLine is above the length of any path.
	maxIgnoreLine = 4096
)

// rule is one line of an ignore file, with git's meaning.
type rule struct {
	pattern  string
	least    int  // minimal length of a matching name
	last     byte // the last byte of a matching name, 0: any
	wild     bool
	negated  bool
	dirOnly  bool
	anchored bool // matches the path from the ignore file's directory, else the name
}

// ignoreSet is the rules of one directory; outer is the set of the parent directory.
type ignoreSet struct {
	outer *ignoreSet
	base  string // absolute path of the directory, without a final slash
	rules []rule // the most important first
	// Counts of all directories up to this one.
	count, bytes int
}

var ignoreNames = []string{".ignore", ".gitignore"} // the earlier file wins

// loadIgnores adds the rules of dir to the rules of its parents.
func (w *walker) loadIgnores(outer *ignoreSet, dir string) *ignoreSet {
	set := &ignoreSet{outer: outer, base: strings.TrimSuffix(dir, "/")}
	if outer != nil {
		set.count, set.bytes = outer.count, outer.bytes
	}
	for _, name := range ignoreNames {
		path := set.base + "/" + name
		text, whole, err := bounded.ReadFile(path, maxIgnoreBytes-set.bytes)
		if err != nil {
			continue
		}
		if !whole {
			text = text[:strings.LastIndexByte(string(text), '\n')+1]
		}
		set.bytes += len(text)
		rules, complete := parseIgnore(string(text), maxIgnoreRules-set.count)
		set.rules = append(set.rules, rules...)
		set.count += len(rules)
		if whole = whole && complete; !whole && !w.ignoresCut {
			w.ignoresCut = true
			w.errors = append(w.errors, fmt.Sprintf("%s: some of its rules are not applied, so files may be "+
				"listed that it ignores: a search uses at most %d rules and %d bytes of ignore files", path,
				maxIgnoreRules, maxIgnoreBytes))
		}
	}
	if len(set.rules) == 0 {
		return outer
	}
	return set
}

// parentIgnores loads the rules of the parents of dir up to the top of its repository. Outside of a
// repository there are none.
func (w *walker) parentIgnores(dir string) *ignoreSet {
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
		set = w.loadIgnores(set, above[i])
	}
	return set
}

func parentOf(path string) string {
	if i := strings.LastIndexByte(path, '/'); i > 0 {
		return path[:i]
	}
	return "/"
}

// parseIgnore returns the rules of a text from its end, since the last rule wins; a line that is
// repeated later has no effect. all is false if there are more than most rules.
func parseIgnore(text string, most int) (rules []rule, all bool) {
	text = strings.TrimPrefix(text, "\ufeff")
	seen := map[string]bool{}
	for text != "" {
		text = strings.TrimSuffix(text, "\n")
		start := strings.LastIndexByte(text, '\n') + 1
		r, ok := parseRule(trimLine(strings.TrimSuffix(text[start:], "\r")))
		text = text[:start]
		key := r.pattern
		if r.dirOnly {
			key += "/"
		}
		if r.anchored {
			key = "/" + key
		}
		if !ok || seen[key] {
			continue
		}
		if len(rules) >= most {
			return rules, false
		}
		seen[key] = true
		rules = append(rules, r)
	}
	return rules, true
}

// parseRule returns false for a line that ignores nothing.
func parseRule(line string) (r rule, ok bool) {
	if line == "" || line[0] == '#' || len(line) > maxIgnoreLine {
		return r, false
	}
	if line[0] == '!' {
		r.negated, line = true, line[1:]
	}
	if rest, ok := strings.CutSuffix(line, "/"); ok {
		r.dirOnly, line = true, rest
	}
	r.anchored = strings.Contains(line, "/")
	line = strings.TrimPrefix(line, "/")
	if rest, ok := strings.CutPrefix(line, "**/"); ok && !strings.Contains(rest, "/") {
		r.anchored, line = false, rest
	}
	r.pattern = line
	r.wild = strings.ContainsAny(line, `*?[\`)
	r.least = minLength(line)
	if line == "" || r.least < 0 {
		return r, false // git skips invalid patterns, too
	}
	// The last byte of a set is its bracket, and an escaped byte stands for itself.
	if end := line[len(line)-1]; !strings.ContainsRune(`*?]`, rune(end)) {
		r.last = end
	}
	return r, true
}

// trimLine removes trailing spaces unless a backslash quotes them.
func trimLine(line string) string {
	end := len(strings.TrimRight(line, " "))
	backslashes := end - len(strings.TrimRight(line[:end], `\`))
	if end < len(line) && backslashes%2 == 1 {
		end++
	}
	return line[:end]
}

// matches applies the rules from the innermost directory out, each file from its end.
func (s *ignoreSet) matches(path, name string, isDir bool) bool {
	for ; s != nil; s = s.outer {
		relative := strings.TrimPrefix(path[len(s.base):], "/")
		for i := range s.rules {
			r := &s.rules[i]
			if r.dirOnly && !isDir {
				continue
			}
			subject := name
			if r.anchored {
				subject = relative
			}
			if r.match(subject) {
				return !r.negated
			}
		}
	}
	return false
}

func (r *rule) match(subject string) bool {
	switch {
	case len(subject) < r.least, r.last != 0 && subject != "" && subject[len(subject)-1] != r.last:
		return false
	case !r.wild:
		return subject == r.pattern
	}
	return matchWild(r.pattern, subject)
}
