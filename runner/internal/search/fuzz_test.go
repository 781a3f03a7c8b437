package search

import (
	"encoding/json"
	"strings"
	"testing"
)

func FuzzGlob(f *testing.F) {
	for _, seed := range []string{"*.go", "**/a", "a/**", "[!a-z]*", "{a,b}", `\*`, "[", "a{", "[]x]", "***"} {
		f.Add(seed, "dir/name.go")
	}
	f.Fuzz(func(t *testing.T, pattern, name string) {
		filter, err := newNameFilter(pattern, strings.Contains(pattern, "/"))
		if err != nil {
			return
		}
		_ = filter.match(name, name)
	})
}

func FuzzIgnoreFile(f *testing.F) {
	f.Add("*.o\n!keep.o\n/build/\n**/x\n# not this\n\\#this\n a\\ \n", "a/build")
	f.Add("!\n/\n//\n!/\n[a\n", "x")
	f.Fuzz(func(t *testing.T, text, name string) {
		rules, _ := parseIgnore(text, maxIgnoreRules)
		set := &ignoreSet{base: "/top", rules: rules}
		_ = set.matches("/top/"+name, name, true)
		_ = set.matches("/top", "", false)
	})
}

func FuzzParams(f *testing.F) {
	f.Add([]byte(`{"pattern":"a.*b","path":".","regex":true,"ignore_case":true,"target":"content","glob":"*.go","context":2,"limit":5,"offset":1,"max_line":80}`))
	f.Add([]byte(`{"pattern":"(","target":"files"}`))
	f.Fuzz(func(t *testing.T, raw []byte) {
		var p params
		if json.Unmarshal(raw, &p) != nil || p.check() != nil {
			return
		}
		if re, err := p.compile(); err == nil && re != nil {
			_ = re.Match(raw)
		}
	})
}
