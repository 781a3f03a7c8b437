package search

import (
	"bytes"
	"regexp"
	"unicode"
	"unicode/utf8"
)

// finder returns the position of the first match in a text, or -1.
type finder func(text []byte) int

func newRegexFinder(re *regexp.Regexp) finder {
	return func(text []byte) int {
		if at := re.FindIndex(text); at != nil {
			return at[0]
		}
		return -1
	}
}

// newFixedFinder finds a fixed pattern in a time that does not grow with its length, as a regular expression
// would need. Only one goroutine may use it.
func newFixedFinder(pattern string, ignoreCase bool) finder {
	if !ignoreCase {
		return func(text []byte) int { return bytes.Index(text, []byte(pattern)) }
	}
	folded := fold(nil, []byte(pattern))
	var room []byte
	return func(text []byte) int {
		room = fold(room[:0], text)
		at := bytes.Index(room, folded)
		if at < 0 {
			return -1
		}
		start := 0
		for range utf8.RuneCount(room[:at]) { // folded characters may have other sizes
			_, n := utf8.DecodeRune(text[start:])
			start += n
		}
		return start
	}
}

// fold appends the text with the smallest of the characters that differ only in case, in place of each.
func fold(to, text []byte) []byte {
	for len(text) > 0 {
		c := text[0]
		if c < utf8.RuneSelf {
			if 'a' <= c && c <= 'z' {
				c -= 'a' - 'A'
			}
			to, text = append(to, c), text[1:]
			continue
		}
		r, n := utf8.DecodeRune(text)
		least := r
		for other := unicode.SimpleFold(r); other != r; other = unicode.SimpleFold(other) {
			least = min(least, other)
		}
		to, text = utf8.AppendRune(to, least), text[n:]
	}
	return to
}
