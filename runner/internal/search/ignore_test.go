package search

import (
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"
)

func TestMatchWild(t *testing.T) {
	for _, c := range []struct {
		pattern string
		yes, no []string
	}{
		{"*", []string{"a", ".a"}, []string{"a/b"}}, {"a*b*c", []string{"abc", "aXbYbZc"}, []string{"abcd", "a/bc"}},
		{"**", []string{"a", "a/b/c"}, nil}, {"a/**", []string{"a/b", "a/b/c"}, []string{"a", "b/a/c"}},
		{"a/**/b", []string{"a/b", "a/x/b", "a/x/y/b"}, []string{"ab", "a/xb", "a/b/c"}},
		{"**/a/**/*b*c", []string{"a/bc", "x/a/bc", "x/a/y/z/1b2c"}, []string{"a/bcd", "xa/bc"}},
		{"a**b", []string{"ab", "axxb"}, []string{"a/b"}}, {"?", []string{"a", " "}, []string{"/", "ab", "", "é"}},
		{"[a-c]x", []string{"ax", "cx"}, []string{"dx", "-x"}}, {"[]x]", []string{"]", "x"}, []string{"[", "a"}},
		{"[!a]", []string{"b", "!"}, []string{"a", "/"}}, {`[\]-a]`, []string{"]", "a", "^"}, []string{"b", `\`}},
		{"[[:digit:]x]", []string{"1", "x"}, []string{"d", ":"}}, {"[[:nosuch:]]", nil, []string{"n", "[", ":]"}},
		{"[ab", nil, []string{"a", "[ab"}}, {`\*`, []string{"*"}, []string{"a", `\*`}}, {`a\`, nil, []string{"a", `a\`}},
		{"a/*/c", []string{"a/b/c"}, []string{"a/c", "a/b/b/c"}}, {"***/a", []string{"a", "x/a"}, []string{"xa"}},
		{strings.Repeat("*a", 2000), []string{strings.Repeat("a", 2000)}, []string{strings.Repeat("a", 1999)}},
		{strings.Repeat("**/a/", 500) + "b", []string{strings.Repeat("a/", 700) + "b"},
			[]string{strings.Repeat("a/", 700) + "c"}},
	} {
		for _, text := range c.yes {
			if !matchWild(c.pattern, text) {
				t.Errorf("%.40q does not match %.40q", c.pattern, text)
			}
			if n := minLength(c.pattern); n < 0 || n > len(text) {
				t.Errorf("%.40q is at least %d long, and matches %.40q", c.pattern, n, text)
			}
		}
		for _, text := range c.no {
			if matchWild(c.pattern, text) {
				t.Errorf("%.40q matches %.40q", c.pattern, text)
			}
		}
	}
}

// Without a literal in front of two stars in a name: git takes those for such that cross directories.
var ignoreParts = []string{"a", "b", "ab", "*", "**", "?", "[ab]", "[!a]", "[a-b]*", "*.c", "a.c", "b?", "/", "/", `\*`,
	"*a*", "[[:alpha:]]", "***", "{a,b}"}

func randomRules(r *rand.Rand) string {
	var text strings.Builder
	for range 1 + r.IntN(5) {
		line := []string{"", "", "", "!", "/"}[r.IntN(5)]
		for range 1 + r.IntN(5) {
			part := ignoreParts[r.IntN(len(ignoreParts))]
			if last := len(line) - 1; strings.HasPrefix(part, "**") && last >= 0 && line[last] != '/' ||
				part == "/" && strings.HasSuffix(line, "/") {
				continue
			}
			line += part
		}
		text.WriteString(line + []string{"\n", "\n", "\n", "/\n", " \n", "\\ \n", "\r\n"}[r.IntN(7)])
	}
	return text.String()
}

func TestIgnoreFilesAsGitReadsThem(t *testing.T) {
	git, err := exec.LookPath("git")
	if err != nil {
		t.Skip("git is not installed")
	}
	files := map[string]string{}
	names := []string{"a", "b", "ab", "a.c", "b.c", "ba", "a b", "*", "{a,b}"}
	for _, name := range names {
		files[name+"1"], files["f"+name] = "x", "x"
		for _, below := range names {
			files[name+"/"+below], files[name+"/ab/"+below] = "x", "x"
		}
	}
	for _, name := range names {
		delete(files, name+"/ab") // it is a directory
	}
	dir := tree(t, files)
	if out, err := exec.Command(git, "-C", dir, "init", "-q").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	all := find(t, dir, map[string]any{"target": "files", "limit": 10_000, "ignore_files": false})
	every := paths(all)
	seed := uint64(time.Now().UnixNano())
	r := rand.New(rand.NewPCG(seed, 0))
	for range 150 {
		rules := map[string]string{".gitignore": randomRules(r), "a/.gitignore": randomRules(r)}
		for name, text := range rules {
			if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		check := exec.Command(git, "-c", "core.excludesFile=", "-C", dir, "check-ignore", "--no-index", "--stdin", "-z")
		check.Stdin = strings.NewReader(strings.Join(every, "\x00"))
		out, err := check.Output()
		if code := check.ProcessState.ExitCode(); err != nil && code != 1 {
			t.Fatalf("seed %d: %v", seed, err)
		}
		want := slices.DeleteFunc(slices.Clone(every), func(path string) bool {
			return strings.Contains("\x00"+string(out), "\x00"+path+"\x00")
		})
		got := paths(find(t, dir, map[string]any{"target": "files", "limit": 10_000}))
		slices.Sort(want)
		slices.Sort(got)
		if !slices.Equal(got, want) {
			t.Fatalf("seed %d: rules %q\nonly here: %q\nonly git:  %q", seed, rules, without(got, want), without(want, got))
		}
	}
}

func without(list, others []string) []string {
	return slices.DeleteFunc(slices.Clone(list), func(s string) bool { return slices.Contains(others, s) })
}

func TestIgnoreRulesBeyondTheBudgetAreReported(t *testing.T) {
	for name, text := range map[string]string{
		"rules": strings.Join(numberNames("n%06d", maxIgnoreRules+10), "\n") + "\n",
		"bytes": strings.Repeat("#"+strings.Repeat("x", 98)+"\n", 11_000),
	} {
		dir := tree(t, map[string]string{".gitignore": text, "a/.gitignore": "x\n", "a/b/.gitignore": text,
			"a/b/c": "hit", "n000000": "hit"})
		r := find(t, dir, map[string]any{"pattern": "hit"})
		if len(r.Errors) != 1 || !strings.Contains(r.Errors[0], "/.gitignore: some of its rules are not applied") {
			t.Errorf("%s: %q", name, r.Errors)
		}
		if !slices.Contains(paths(r), "a/b/c") {
			t.Errorf("%s: %q", name, paths(r))
		}
	}
	// Lines that are there twice are one rule, and files side by side do not add up.
	dir := tree(t, map[string]string{".gitignore": strings.Repeat("?x\n", 100_000)})
	for i := range 3 {
		sub := filepath.Join(dir, fmt.Sprint(i))
		if err := os.Mkdir(sub, 0o700); err != nil {
			t.Fatal(err)
		}
		rules := strings.Join(numberNames("n%06d", maxIgnoreRules-10), "\n")
		if err := os.WriteFile(sub+"/.ignore", []byte(rules), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if r := find(t, dir, map[string]any{"pattern": "hit"}); len(r.Errors) > 0 {
		t.Error(r.Errors)
	}
}

func numberNames(format string, n int) []string {
	out := make([]string, n)
	for i := range out {
		out[i] = fmt.Sprintf(format, i)
	}
	return out
}

func TestIgnoreFilesOfAMebibyteTakeLittleMemory(t *testing.T) {
	files := map[string]string{}
	var rules strings.Builder
	for i := range 1 << 18 {
		fmt.Fprintf(&rules, "?%x\n", i)
	}
	at := ""
	for range 4 {
		files[at+".gitignore"], files[at+".ignore"] = rules.String(), strings.Repeat("?a\n", 1<<18)
		for i := range 100 {
			files[fmt.Sprintf("%sfile%d", at, i)] = "hit"
		}
		at += "sub/"
	}
	dir := tree(t, files)
	runtime.GC()
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	r := find(t, dir, map[string]any{"pattern": "hit", "limit": 1000})
	runtime.ReadMemStats(&after)
	if r.Total != 400 || len(r.Errors) != 1 {
		t.Errorf("%d matches, errors %q", r.Total, r.Errors)
	}
	if took := after.TotalAlloc - before.TotalAlloc; took > 64<<20 {
		t.Errorf("%d MiB were allocated", took>>20)
	}
}
