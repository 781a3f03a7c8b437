package search

import "strings"

// matchWild matches a pattern of an ignore file as git does: `*` and `?` stay inside one name, `**`
// between slashes stands for any directories, `[…]` for a byte of a set, `\` quotes the next byte.
// Nothing is compiled. Of each sort of star only the last is tried again, because the pattern
// before it has already matched at its earliest place.
func matchWild(pattern, text string) bool {
	p, t := 0, 0
	star, starText := -1, 0 // after the last star of this name, and the end of its text
	deep, deepText := -1, 0 // after the last `**/`, and the directory that it matches
	for p < len(pattern) || t < len(text) {
		if p < len(pattern) && pattern[p] == '*' {
			end := starsEnd(pattern, p)
			crosses := end-p > 1 && (p == 0 || pattern[p-1] == '/')
			switch {
			case crosses && end == len(pattern):
				return true
			case crosses && pattern[end] == '/':
				p, star = end+1, -1
				deep, deepText = p, t
			default:
				p, star, starText = end, end, t
			}
			continue
		}
		if p < len(pattern) && t < len(text) {
			if end, ok := matchByte(pattern, p, text[t]); ok {
				if text[t] == '/' {
					star = -1
				}
				p, t = end, t+1
				continue
			}
		}
		switch {
		case star >= 0 && starText < len(text) && text[starText] != '/':
			starText++
			p, t = star, starText
		case deep >= 0:
			slash := strings.IndexByte(text[deepText:], '/')
			if slash < 0 {
				return false
			}
			deepText += slash + 1
			p, t, star = deep, deepText, -1
		default:
			return false
		}
	}
	return true
}

func starsEnd(pattern string, p int) int {
	for p < len(pattern) && pattern[p] == '*' {
		p++
	}
	return p
}

// matchByte matches one byte with the pattern at p and returns the end of that element: -1 for an
// invalid pattern, which matches nothing.
func matchByte(pattern string, p int, c byte) (end int, ok bool) {
	switch pattern[p] {
	case '?':
		return p + 1, c != '/'
	case '[':
		return matchSet(pattern, p, c)
	case '\\':
		if p+1 == len(pattern) {
			return -1, false
		}
		return p + 2, pattern[p+1] == c
	}
	return p + 1, pattern[p] == c
}

// matchSet is matchByte for a bracket expression.
func matchSet(pattern string, p int, c byte) (end int, ok bool) {
	at := func(i int) byte {
		if i < len(pattern) {
			return pattern[i]
		}
		return 0
	}
	i := p + 1
	negated := at(i) == '!' || at(i) == '^'
	if negated {
		i++
	}
	matched, before := false, byte(0) // before is the possible start of a range
	for first := true; first || at(i) != ']'; first = false {
		this := at(i)
		switch {
		case this == '-' && before != 0 && at(i+1) != 0 && at(i+1) != ']':
			if i++; at(i) == '\\' {
				i++
			}
			matched = matched || before <= c && c <= at(i)
			this = at(i)
			before = 0
		case this == '[' && at(i+1) == ':' && strings.HasSuffix(untilBracket(pattern, i+2), ":"):
			name := untilBracket(pattern, i+2)
			valid, in := inClass(strings.TrimSuffix(name, ":"), c)
			if !valid {
				return -1, false
			}
			matched = matched || in
			i += 2 + len(name)
			before = 0
		default:
			if this == '\\' {
				i++
				this = at(i)
			}
			matched = matched || this == c
			before = this
		}
		if this == 0 {
			return -1, false
		}
		i++
	}
	return i + 1, matched != negated && c != '/'
}

// untilBracket returns the text before the next `]`, "" without one.
func untilBracket(pattern string, i int) string {
	before, _, ok := strings.Cut(pattern[i:], "]")
	if !ok {
		return ""
	}
	return before
}

func inClass(name string, c byte) (valid, in bool) {
	lower, upper, digit := 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9'
	graph := c > ' ' && c < 0x7f
	switch name {
	case "lower":
		return true, lower
	case "upper":
		return true, upper
	case "alpha":
		return true, lower || upper
	case "digit":
		return true, digit
	case "alnum":
		return true, lower || upper || digit
	case "xdigit":
		return true, digit || 'a' <= c && c <= 'f' || 'A' <= c && c <= 'F'
	case "punct":
		return true, graph && !lower && !upper && !digit
	case "graph":
		return true, graph
	case "print":
		return true, graph || c == ' '
	case "blank":
		return true, c == ' ' || c == '\t'
	case "space":
		return true, c == ' ' || '\t' <= c && c <= '\r'
	case "cntrl":
		return true, c < ' ' || c == 0x7f
	}
	return false, false
}

// minLength returns the minimal length of a match, -1 for an invalid pattern.
func minLength(pattern string) int {
	n := 0
	for p := 0; p < len(pattern); {
		if pattern[p] == '*' {
			end := starsEnd(pattern, p)
			if end-p > 1 && (p == 0 || pattern[p-1] == '/') && end < len(pattern) && pattern[end] == '/' {
				end++ // `**/` may match nothing
			}
			p = end
			continue
		}
		end, _ := matchByte(pattern, p, 0)
		if end < 0 {
			return -1
		}
		p = end
		n++
	}
	return n
}
