package search

import (
	"math/rand"
	"regexp"
	"strings"
	"testing"
)

func TestFixedFinderAgreesWithARegularExpression(t *testing.T) {
	random := rand.New(rand.NewSource(1))
	letters := []string{"a", "A", "b", "k", "K", "\u212a", "s", "ſ", "σ", "ς", "Σ", "é", "É", "İ", "ı", "i", ".",
		"\ufffd", "🦀"}
	word := func(most int) string {
		var text strings.Builder
		for range 1 + random.Intn(most) {
			text.WriteString(letters[random.Intn(len(letters))])
		}
		return text.String()
	}
	for range 20_000 {
		pattern, text := word(3), word(20)
		for _, ignoreCase := range []bool{false, true} {
			expression := regexp.QuoteMeta(pattern)
			if ignoreCase {
				expression = "(?i:" + expression + ")"
			}
			want := newRegexFinder(regexp.MustCompile(expression))([]byte(text))
			if got := newFixedFinder(pattern, ignoreCase)([]byte(text)); got != want {
				t.Fatalf("%q in %q, case ignored: %v: got %d, want %d", pattern, text, ignoreCase, got, want)
			}
		}
	}
}

// As a regular expression, each of these searches would take more than ten minutes.
func TestLongFixedPatternInOneLongLine(t *testing.T) {
	pattern := strings.Repeat("a", maxPattern-1) + "b"
	line := strings.Repeat("a", 16<<20)
	dir := tree(t, map[string]string{"without": line, "with": line + pattern})
	for _, ignoreCase := range []bool{false, true} {
		r := find(t, dir, map[string]any{"pattern": pattern, "regex": false, "ignore_case": ignoreCase, "max_line": 1})
		equal(t, lines(r), []string{"with:1:16777217:a"})
	}
	_, err := tryFind(dir, map[string]any{"pattern": "c" + pattern, "regex": false})
	if err == nil || !strings.Contains(err.Error(), "a pattern of 16385 bytes is over the limit of 16384 bytes") {
		t.Error(err)
	}
}
