package search

import (
	"regexp"
	"strings"
)

// globPattern is a compiled file name pattern: `*` and `?` stay inside one name, `**` crosses
// directories, `[a-z]` and `{a,b}` are alternatives, `\` quotes the next character.
type globPattern struct {
	re *regexp.Regexp
	// literal and suffix match the two usual forms without a regular expression.
	literal, suffix string
}

const metaCharacters = `*?[{\`

func compileGlob(pattern string) (*globPattern, error) {
	if !strings.ContainsAny(pattern, metaCharacters) {
		return &globPattern{literal: pattern}, nil
	}
	if rest, ok := strings.CutPrefix(pattern, "*"); ok && rest != "" && !strings.ContainsAny(rest, metaCharacters+"/") {
		return &globPattern{suffix: rest}, nil
	}
	re, err := regexp.Compile(`^(?s:` + translate(pattern) + `)$`)
	if err != nil {
		return nil, err
	}
	return &globPattern{re: re}, nil
}

func (g *globPattern) match(name string) bool {
	switch {
	case g.re != nil:
		return g.re.MatchString(name)
	case g.suffix != "":
		return strings.HasSuffix(name, g.suffix) && strings.IndexByte(name[:len(name)-len(g.suffix)], '/') < 0
	}
	return name == g.literal
}

// translate returns a glob as a regular expression.
func translate(pattern string) string {
	var b strings.Builder
	braces := 0
	for i := 0; i < len(pattern); i++ {
		c := pattern[i]
		switch {
		case c == '*' && strings.HasPrefix(pattern[i:], "**"):
			i += writeStars(&b, pattern, i) - 1
		case c == '*':
			b.WriteString(`[^/]*`)
		case c == '?':
			b.WriteString(`[^/]`)
		case c == '[':
			i += writeClass(&b, pattern[i:]) - 1
		case c == '{' && strings.IndexByte(pattern[i:], '}') > 0:
			b.WriteString(`(?:`)
			braces++
		case c == '}' && braces > 0:
			b.WriteString(`)`)
			braces--
		case c == ',' && braces > 0:
			b.WriteString(`|`)
		case c == '\\' && i+1 < len(pattern):
			i++
			b.WriteString(regexp.QuoteMeta(pattern[i : i+1]))
		case c >= 0x80:
			b.WriteByte(c)
		default:
			b.WriteString(regexp.QuoteMeta(pattern[i : i+1]))
		}
	}
	b.WriteString(strings.Repeat(")", braces))
	return b.String()
}

// writeStars writes a run of two or more stars and returns how much of the pattern it used.
func writeStars(b *strings.Builder, pattern string, i int) int {
	n := 2
	for i+n < len(pattern) && pattern[i+n] == '*' {
		n++
	}
	starts := i == 0 || pattern[i-1] == '/'
	switch {
	case starts && i+n < len(pattern) && pattern[i+n] == '/':
		b.WriteString(`(?:.*/)?`)
		return n + 1
	case starts && i+n == len(pattern):
		b.WriteString(`.*`)
	case i+n == len(pattern) || starts:
		b.WriteString(`.*`)
	default:
		b.WriteString(`[^/]*`)
	}
	return n
}

// writeClass writes a bracket expression and returns how much of the pattern it used. An unclosed
// one is an ordinary `[`.
func writeClass(b *strings.Builder, pattern string) int {
	i, negated := 1, false
	if i < len(pattern) && (pattern[i] == '!' || pattern[i] == '^') {
		negated = true
		i++
	}
	start := i
	if i < len(pattern) && pattern[i] == ']' {
		i++
	}
	for i < len(pattern) && pattern[i] != ']' {
		i++
	}
	if i >= len(pattern) || strings.IndexByte(pattern[:i], '/') >= 0 {
		b.WriteString(`\[`)
		return 1
	}
	b.WriteByte('[')
	if negated {
		b.WriteString(`^/`)
	}
	for _, c := range []byte(pattern[start:i]) {
		if strings.IndexByte(`[]\^&~`, c) >= 0 {
			b.WriteByte('\\')
		}
		b.WriteByte(c)
	}
	b.WriteByte(']')
	return i + 1
}

// nameFilter is a glob of a search: without a slash it matches the name alone, with a slash the path
// below the search's root.
type nameFilter struct {
	glob  *globPattern
	paths bool
}

func newNameFilter(pattern string, paths bool) (*nameFilter, error) {
	g, err := compileGlob(pattern)
	if err != nil {
		return nil, badRequest("glob %q: %v", pattern, err)
	}
	return &nameFilter{glob: g, paths: paths}, nil
}

func (f *nameFilter) match(relative, name string) bool {
	if f.paths {
		return f.glob.match(relative)
	}
	return f.glob.match(name)
}
