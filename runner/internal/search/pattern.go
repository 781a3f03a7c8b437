package search

import (
	"regexp"
	"regexp/syntax"
	"slices"
)

// requires reports whether every match of the pattern contains the character.
func requires(re *regexp.Regexp, char rune) bool {
	parsed, err := syntax.Parse(re.String(), syntax.Perl)
	return err == nil && mustContain(parsed, char)
}

func mustContain(re *syntax.Regexp, char rune) bool {
	has := func(sub *syntax.Regexp) bool { return mustContain(sub, char) }
	switch re.Op {
	case syntax.OpLiteral:
		return slices.Contains(re.Rune, char)
	case syntax.OpCharClass:
		return slices.Equal(re.Rune, []rune{char, char})
	case syntax.OpCapture, syntax.OpPlus, syntax.OpConcat:
		return slices.ContainsFunc(re.Sub, has)
	case syntax.OpRepeat:
		return re.Min > 0 && has(re.Sub[0])
	case syntax.OpAlternate:
		return !slices.ContainsFunc(re.Sub, func(sub *syntax.Regexp) bool { return !has(sub) })
	}
	return false
}
