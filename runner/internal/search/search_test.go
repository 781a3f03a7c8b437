package search

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
	"unicode/utf16"
	"unicode/utf8"

	"hermes-exec/runner/internal/ipc"
)

func tree(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range files {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func find(t *testing.T, dir string, p map[string]any) *Result {
	t.Helper()
	r, err := tryFind(dir, p)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func tryFind(dir string, p map[string]any) (*Result, error) {
	if _, ok := p["path"]; !ok {
		p["path"] = "."
	}
	raw, err := json.Marshal(p)
	if err != nil {
		return nil, err
	}
	return Search(context.Background(), dir, raw)
}

func lines(r *Result) []string {
	out := []string{}
	for _, m := range r.Matches {
		out = append(out, fmt.Sprintf("%s:%d:%d:%s", m.Path, m.Line, m.Column, m.Text))
	}
	return out
}

func equal(t *testing.T, got, want any) {
	t.Helper()
	if g, w := fmt.Sprintf("%q", got), fmt.Sprintf("%q", want); g != w {
		t.Errorf("got  %s\nwant %s", g, w)
	}
}

func paths(r *Result) []string {
	out := []string{}
	for _, f := range r.Files {
		out = append(out, string(f.Path))
	}
	return out
}

func TestMatchesInOrderOfPaths(t *testing.T) {
	dir := tree(t, map[string]string{"b.txt": "x\nfoo bar\n", "a/z.txt": "foo\n\nfoo\r\nno", "c": "nofoo"})
	r := find(t, dir, map[string]any{"pattern": "fo+"})
	equal(t, lines(r), []string{"a/z.txt:1:1:foo", "a/z.txt:3:1:foo", "b.txt:2:1:foo bar", "c:1:3:nofoo"})
	if r.Total != 4 || r.TotalFiles != 3 || r.Truncated || r.Files[0].Count != 2 {
		t.Errorf("%+v", r)
	}
}

func TestEveryWayOfScanningFindsTheSame(t *testing.T) {
	var text strings.Builder
	for i := range 30_000 {
		fmt.Fprintf(&text, "line %d %s\n", i, map[bool]string{true: "needle", false: "hay"}[i%997 == 3])
	}
	dir := tree(t, map[string]string{"f": text.String()})
	want := lines(find(t, dir, map[string]any{"pattern": "needle"}))
	if len(want) != 31 {
		t.Fatalf("%d matches", len(want))
	}
	for _, p := range []map[string]any{{"pattern": "needle", "context": 1}, {"pattern": "[n]eedle"},
		{"pattern": "NEEDLE", "ignore_case": true}, {"pattern": "needle", "regex": false}} {
		equal(t, lines(find(t, dir, p)), want)
	}
}

func TestTrueTotalsBeyondTheLimit(t *testing.T) {
	files := map[string]string{}
	for i := range 40 {
		files[fmt.Sprintf("f%02d", i)] = strings.Repeat("hit\n", 50)
	}
	dir := tree(t, files)
	r := find(t, dir, map[string]any{"pattern": "hit", "limit": 3, "offset": 49})
	equal(t, lines(r), []string{"f00:50:1:hit", "f01:1:1:hit", "f01:2:1:hit"})
	if r.Total != 2000 || r.TotalFiles != 40 || !r.Truncated {
		t.Errorf("total %d in %d files, truncated %v", r.Total, r.TotalFiles, r.Truncated)
	}
	r = find(t, dir, map[string]any{"pattern": "hit", "limit": 10, "offset": 1995})
	if len(r.Matches) != 5 || r.Truncated || r.Matches[4].Path != "f39" {
		t.Errorf("last page: %v truncated %v", lines(r), r.Truncated)
	}
	if r = find(t, dir, map[string]any{"pattern": "hit", "limit": 0}); r.Total != 2000 || len(r.Matches) != 0 ||
		!r.Truncated {
		t.Errorf("limit 0: %+v", r)
	}
}

func TestWindowBehindWhatOneFileMayKeep(t *testing.T) {
	line := "hit " + strings.Repeat("x", 2000) + "\n"
	dir := tree(t, map[string]string{"a": "hit\n", "big": strings.Repeat(line, 6000)})
	r := find(t, dir, map[string]any{"pattern": "hit", "limit": 2, "offset": 5500, "max_line": 4000})
	if len(r.Matches) != 2 || r.Matches[0].Line != 5500 || r.Total != 6001 {
		t.Errorf("%d matches, first %d, total %d", len(r.Matches), r.Matches[0].Line, r.Total)
	}
}

func TestContext(t *testing.T) {
	dir := tree(t, map[string]string{"f": "1\n2\nhit\nhit\n5\n6\n7\n"})
	r := find(t, dir, map[string]any{"pattern": "hit", "context": 2})
	equal(t, r.Matches[0].Before, []ipc.Bytes{"1", "2"})
	equal(t, r.Matches[0].After, []ipc.Bytes{"hit", "5"})
	equal(t, r.Matches[1].Before, []ipc.Bytes{"2", "hit"})
	equal(t, r.Matches[1].After, []ipc.Bytes{"5", "6"})
}

func TestPatternIsOnlyAPattern(t *testing.T) {
	dir := tree(t, map[string]string{"f": "-f/etc/passwd\na.c\n$(id)\n--pre\n"})
	for pattern, want := range map[string]string{"-f/etc": "f:1:1:-f/etc/passwd", "--pre": "f:4:1:--pre",
		`\$\(id\)`: "f:3:1:$(id)"} {
		equal(t, lines(find(t, dir, map[string]any{"pattern": pattern})), []string{want})
	}
	equal(t, lines(find(t, dir, map[string]any{"pattern": "a.c", "regex": false})), []string{"f:2:1:a.c"})
	equal(t, lines(find(t, dir, map[string]any{"pattern": "$(id)", "regex": false})), []string{"f:3:1:$(id)"})
}

func TestBadRequestsSayWhy(t *testing.T) {
	dir := tree(t, map[string]string{"f": "x"})
	for _, p := range []map[string]any{{"pattern": "a("}, {"pattern": ""}, {"pattern": "a", "offset": -1},
		{"pattern": "a", "target": "words"}, {"pattern": "(?P<n>a)(?=b)"}, {"pattern": 7}} {
		_, err := tryFind(dir, p)
		var e *ipc.Error
		if !errors.As(err, &e) || e.Kind != "bad_request" || e.Message == "" {
			t.Errorf("%v: %v", p, err)
		}
	}
	_, err := tryFind(dir, map[string]any{"pattern": "a("})
	if !strings.Contains(err.Error(), "missing closing") {
		t.Error(err)
	}
	var e *ipc.Error
	if _, err = tryFind(dir, map[string]any{"pattern": "a", "path": "gone"}); !errors.As(err, &e) ||
		e.Errno != "ENOENT" {
		t.Error(err)
	}
}

func TestIgnoreFiles(t *testing.T) {
	dir := tree(t, map[string]string{
		".gitignore": "*.log\n!keep.log\nbuild/\n/top.txt\ndocs/**/*.tmp\n# comment\n\\#odd\ntrail " +
			"\nspace\\ \n[ab].x\n**/deep/secret\nwild*card\n",
		"a.log": "hit", "keep.log": "hit", "build/x": "hit", "sub/build/y": "hit", "top.txt": "hit",
		"sub/top.txt":    "hit",
		"docs/a/b/c.tmp": "hit", "docs/c.tmp": "hit", "docs/c.txt": "hit", "#odd": "hit", "trail": "hit", "a.x": "hit",
		"c.x":           "hit",
		"q/deep/secret": "hit", "sub/.gitignore": "!a.log\n", "sub/a.log": "hit", "sub/more/a.log": "hit",
		"sub/.ignore": "more/\n",
		".hidden":     "hit", ".git/config": "hit", "buildx/build": "hit", "wild-X-card": "hit", "space ": "hit",
	})
	want := []string{"buildx/build", "c.x", "docs/c.txt", "keep.log", "sub/a.log", "sub/top.txt"}
	equal(t, paths(find(t, dir, map[string]any{"pattern": "hit"})), want)
	r := find(t, dir, map[string]any{"pattern": "hit", "hidden": true})
	equal(t, paths(r), append([]string{".hidden"}, want...))
	r = find(t, dir, map[string]any{"pattern": "hit", "hidden": true, "ignore_files": false})
	if r.TotalFiles != 21 {
		t.Errorf("%d files without ignore files: %q", r.TotalFiles, paths(r))
	}
	// Rules above the searched directory count inside a repository.
	equal(t, paths(find(t, dir, map[string]any{"pattern": "hit", "path": "docs"})), []string{"docs/c.txt"})
}

func TestGlobFilter(t *testing.T) {
	dir := tree(t, map[string]string{"src/a.ts": "x", "src/l/m/b.ts": "x", "lib/src/c.ts": "x", "d.ts": "x",
		"e.py": "x", "f.go": "x", "g.pyc": "x", "src/q.js": "x"})
	for glob, want := range map[string][]string{
		"src/**/*.ts": {"src/a.ts", "src/l/m/b.ts"}, "*.{py,go}": {"e.py", "f.go"}, "src/*": {"src/a.ts", "src/q.js"},
		"**/src/*.ts": {"lib/src/c.ts", "src/a.ts"},
		"[!e].*":      {"d.ts", "f.go", "g.pyc", "lib/src/c.ts", "src/a.ts", "src/l/m/b.ts", "src/q.js"},
		"?.py":        {"e.py"}, "src/**": {"src/a.ts", "src/l/m/b.ts", "src/q.js"},
	} {
		equal(t, paths(find(t, dir, map[string]any{"pattern": "x", "glob": glob})), want)
	}
}

func TestBinaryFilesAreCounted(t *testing.T) {
	dir := tree(t, map[string]string{"a": "hit\n\x00", "late": strings.Repeat("hit\n", 100_000) + "\x00",
		"text": "hit", "empty": "", "utf32": "\xff\xfe\x00\x00h\x00\x00\x00"})
	r := find(t, dir, map[string]any{"pattern": "hi?t$"})
	equal(t, skipped(r), []string{"binary 2 [a utf32]"})
	if r.Total != 100_001 {
		t.Errorf("%d matches: a NUL byte after 8 KiB of text is no sign of a binary file", r.Total)
	}
}

func skipped(r *Result) []string {
	out := []string{}
	for _, s := range r.Skipped {
		out = append(out, fmt.Sprintf("%s %d %s", s.Reason, s.Count, s.Paths))
	}
	return out
}

func TestTextOfOtherEncodingsIsFound(t *testing.T) {
	utf16File := func(order binary.AppendByteOrder, text string) string {
		data := order.AppendUint16(nil, 0xfeff)
		for _, unit := range utf16.Encode([]rune(text)) {
			data = order.AppendUint16(data, unit)
		}
		return string(data)
	}
	long := strings.Repeat("x", 5_000) + "😀\n"
	dir := tree(t, map[string]string{
		"big":    utf16File(binary.BigEndian, "eins\r\nGrüße 😀\r\n"),
		"half":   "\xff\xfe" + "\x3d\xd8G\x00" + "\x00\xd8",
		"latin":  "a\nGr\xfc\xdfe\n",
		"little": utf16File(binary.LittleEndian, strings.Repeat(long, 90)+"Grüße"),
		"marked": "\xef\xbb\xbfGrüße\n",
		"mixed":  "Gr\xfc\xdfe\nGrüße\n\xfc ü\n",
		"nul":    strings.Repeat("x\n", 5_000) + "Grüße\x00",
	})
	r := find(t, dir, map[string]any{"pattern": "^Grüße", "max_line": 20})
	equal(t, lines(r), []string{"big:2:1:Grüße 😀", "latin:2:1:Grüße", "little:91:1:Grüße", "marked:1:1:Grüße",
		"mixed:1:1:Grüße", "mixed:2:1:Grüße", "nul:5001:1:Grüße\ufffd"})
	equal(t, skipped(r), []string{})
	r = find(t, dir, map[string]any{"pattern": "(?i)GRÜSSE|\ufffd|x😀$", "context": 1, "max_line": 20, "limit": 3})
	equal(t, lines(r), []string{"half:1:1:\ufffdG", "little:1:5000:" + strings.Repeat("x", 20),
		"little:2:5000:" + strings.Repeat("x", 20)})
	if r.Total != 1+90+1+1 {
		t.Errorf("%d matches", r.Total)
	}
	equal(t, paths(find(t, dir, map[string]any{"pattern": "^\ufffd ü$"})), []string{"mixed"})
}

func TestLongLineOfAnotherEncodingIsFound(t *testing.T) {
	dir := tree(t, map[string]string{"a": strings.Repeat("\xe4", 9<<20) + "Gr\xfc\xdfe"})
	r := find(t, dir, map[string]any{"pattern": "Grüße"})
	if r.Total != 1 || !strings.HasPrefix(string(r.Matches[0].Text), "ää") {
		t.Errorf("%d matches", r.Total)
	}
}

func TestPatternWithALineEndIsRefused(t *testing.T) {
	dir := tree(t, map[string]string{"f": "a\r\nb\rc\nd\n"})
	for _, pattern := range []string{`a\nb`, "a\nb", `a\r\n`, `(a|b)[\n]c?`, `a(\n|\r\n)+b`, `(?s)a.*\n`, `a\n{1,3}`} {
		_, err := tryFind(dir, map[string]any{"pattern": pattern})
		if err == nil || !strings.Contains(err.Error(), "each line is searched by itself") {
			t.Errorf("%q: %v", pattern, err)
		}
	}
	if _, err := tryFind(dir, map[string]any{"pattern": "a\nb", "regex": false}); err == nil {
		t.Error("accepted as plain text")
	}
	for pattern, want := range map[string]int{`a\n?`: 1, `[^\n]`: 3, `a|\n`: 1, `a\s*$`: 1, `a\n*`: 1, `a$`: 1, `a\r?$`: 1,
		`\r$`: 1, `\r`: 2, `a\r$`: 1, `b\r`: 1} {
		if r := find(t, dir, map[string]any{"pattern": pattern}); r.Total != want {
			t.Errorf("%q: %d matches, want %d", pattern, r.Total, want)
		}
	}
}

func TestSkippedEntriesAreNamed(t *testing.T) {
	dir := tree(t, map[string]string{".gitignore": "build/\n*.log\n", "build/x.py": "hit", "a.log": "hit", "d/b.log": "hit",
		".env": "hit", ".venv/lib.py": "hit", ".git/config": "hit", "c.py": "no", "d/e.py": "no"})
	if err := os.Symlink("/etc/hostname", filepath.Join(dir, "link")); err != nil {
		t.Fatal(err)
	}
	r := find(t, dir, map[string]any{"pattern": "hit"})
	equal(t, skipped(r), []string{"hidden 3 [.env .gitignore .venv]", "ignored 3 [a.log build d/b.log]", "link 1 [link]"})
	// Only entries that can have matches: a file that matches the glob, a directory that is deep enough.
	r = find(t, dir, map[string]any{"pattern": "hit", "glob": "*.py"})
	equal(t, skipped(r), []string{"hidden 1 [.venv]", "ignored 1 [build]"})
	r = find(t, dir, map[string]any{"pattern": "build/*", "target": "files"})
	equal(t, skipped(r), []string{"ignored 1 [build]"})
	r = find(t, dir, map[string]any{"pattern": "d", "target": "files"})
	equal(t, skipped(r), []string{"hidden 1 [.venv]", "ignored 1 [build]", "directory 1 [d]"})
	r = find(t, dir, map[string]any{"pattern": ".git/*", "target": "files"})
	equal(t, skipped(r), []string{"ignored 1 [.git]"})
	equal(t, paths(find(t, dir, map[string]any{"pattern": "*", "target": "files", "path": "build"})), []string{"build/x.py"})
}

func TestPatternNamesHiddenAndDistantFiles(t *testing.T) {
	dir := tree(t, map[string]string{".env": "hit", "s/.env": "hit", ".github/w/ci.yml": "hit", ".github/.x/a.yml": "hit",
		"a.txt": "hit", "s/b.txt": "hit", "s/t/c.txt": "hit", ".gitignore": "s/t\n"})
	other := tree(t, map[string]string{"o/.hidden/a.txt": "hit", "o/b.txt": "hit"})
	if err := os.Symlink(other+"/o", filepath.Join(dir, "away")); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		pattern, path string
		want          []string
	}{
		{".env", ".", []string{".env", "s/.env"}},
		{"**/.env", ".", []string{".env", "s/.env"}},
		{"{.env,*.yaml}", ".", []string{".env", "s/.env"}},
		{".github/**/*.yml", ".", []string{".github/w/ci.yml"}},
		{".github/", ".", []string{".github/w/ci.yml"}},
		{".github/**/.x/*", ".", []string{".github/.x/a.yml"}},
		{"./.github/w/ci.yml", ".", []string{".github/w/ci.yml"}},
		{dir + "/a.txt", ".", []string{dir + "/a.txt"}},
		{dir + "/a.txt", dir, []string{dir + "/a.txt"}},
		{dir + "/**/*.txt", "s", []string{dir + "/a.txt", dir + "/s/b.txt"}},
		{dir + "/**/*.txt", ".", []string{dir + "/a.txt", dir + "/s/b.txt"}},
		{dir + "/s/t/*", ".", []string{}},
		{other + "/o/*.txt", ".", []string{other + "/o/b.txt"}},
		{other + "/*/.hidden/*.txt", ".", []string{other + "/o/.hidden/a.txt"}},
		{"../a.txt", "s", []string{"s/../a.txt"}},
		{"away/*.txt", ".", []string{"away/b.txt"}},
		{"s/b.txt", ".", []string{"s/b.txt"}},
		{"b.txt", ".", []string{"s/b.txt"}},
		{"missing/*.txt", ".", []string{}},
		{"a.txt/*", ".", []string{}},
		{"/" + strings.TrimPrefix(dir, "/") + "//s/./b.txt", ".", []string{dir + "/s/b.txt"}},
	} {
		for _, p := range []map[string]any{{"pattern": c.pattern, "target": "files"}, {"pattern": "hit", "glob": c.pattern}} {
			p["path"] = c.path
			found := paths(find(t, dir, p))
			slices.Sort(found)
			if !slices.Equal(found, c.want) {
				t.Errorf("%v: %q, want %q", p, found, c.want)
			}
		}
	}
	equal(t, paths(find(t, dir, map[string]any{"pattern": "away", "target": "files"})), []string{"away"})
	equal(t, paths(find(t, dir, map[string]any{"pattern": "hit", "path": "a.txt", "glob": "s/*.py"})), []string{"a.txt"})
}

func TestLongLinesAreCutBetweenCharacters(t *testing.T) {
	dir := tree(t, map[string]string{"a": "hit" + strings.Repeat("é", 1000), "b": strings.Repeat("y", 9<<20) + "hit" +
		strings.Repeat("z", 3<<20) + "\nhit 2\n"})
	r := find(t, dir, map[string]any{"pattern": "hit"})
	if len(r.Matches) != 3 || len(r.Matches[0].Text) != 499 || !utf8.ValidString(string(r.Matches[0].Text)) {
		t.Fatalf("%d matches, %d bytes", len(r.Matches), len(r.Matches[0].Text))
	}
	if m := r.Matches[1]; m.Line != 1 || m.Column != 9<<20+1 || len(m.Text) != 500 {
		t.Errorf("long line: %d:%d, %d bytes", m.Line, m.Column, len(m.Text))
	}
	if m := r.Matches[2]; m.Line != 2 || m.Text != "hit 2" {
		t.Errorf("after it: %+v", m)
	}
}

func TestLinkLoopsAndSpecialFiles(t *testing.T) {
	dir := tree(t, map[string]string{"d/f": "hit"})
	if err := os.Symlink("..", filepath.Join(dir, "d", "up")); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("f", filepath.Join(dir, "d", "g")); err != nil {
		t.Fatal(err)
	}
	mkfifo(t, filepath.Join(dir, "fifo"))
	equal(t, lines(find(t, dir, map[string]any{"pattern": "hit"})), []string{"d/f:1:1:hit"})
	var e *ipc.Error
	if _, err := tryFind(dir, map[string]any{"pattern": "hit", "path": "fifo"}); !errors.As(err, &e) ||
		e.Errno != "EINVAL" {
		t.Error(err)
	}
	equal(t, lines(find(t, dir, map[string]any{"pattern": "hit", "path": "d/g"})), []string{"d/g:1:1:hit"})
}

func TestFilesByTimeNewestFirst(t *testing.T) {
	dir := tree(t, map[string]string{"a.py": "", "s/b.py": "", "c.py": "", "d.txt": ""})
	now := time.Now()
	for i, name := range []string{"c.py", "s/b.py", "a.py"} {
		at := now.Add(-time.Duration(i) * time.Hour)
		if err := os.Chtimes(filepath.Join(dir, name), at, at); err != nil {
			t.Fatal(err)
		}
	}
	r := find(t, dir, map[string]any{"pattern": "*.py", "target": "files"})
	equal(t, paths(r), []string{"c.py", "s/b.py", "a.py"})
	r = find(t, dir, map[string]any{"pattern": "*.py", "target": "files", "limit": 1, "offset": 1})
	equal(t, paths(r), []string{"s/b.py"})
	if r.Total != 3 || r.TotalFiles != 3 || !r.Truncated {
		t.Errorf("%+v", r)
	}
	g, err := Glob(context.Background(), dir, json.RawMessage(`{"pattern": "**/*.py", "path": "."}`))
	if err != nil {
		t.Fatal(err)
	}
	equal(t, g.Paths, []ipc.Bytes{"c.py", "s/b.py", "a.py"})
}

func TestGlobPaths(t *testing.T) {
	dir := tree(t, map[string]string{"a.py": "", "s/b.py": "", "s/t/c.py": "", ".h/d.py": "", "with\nnewline": "",
		"raw\xff": ""})
	if err := os.Symlink("a.py", filepath.Join(dir, "link")); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		pattern, path string
		want          int
	}{{"li*", ".", 1}, {"*.py", ".", 1}, {"**/*.py", ".", 3}, {"s/*", ".", 2}, {"s/**", ".", 3}, {"*.py", "s", 1}, {".h/*", ".", 1},
		{dir + "/s/*.py", ".", 1}, {"no/such/*", ".", 0}, {"with*", ".", 1}, {"raw*", ".", 1}} {
		raw, _ := json.Marshal(map[string]string{"pattern": c.pattern, "path": c.path})
		g, err := Glob(context.Background(), dir, raw)
		if err != nil || g.Total != c.want || len(g.Paths) != c.want {
			t.Errorf("%q in %s: %q %v, want %d", c.pattern, c.path, g.Paths, err, c.want)
		}
	}
	if _, err := Glob(context.Background(), dir, json.RawMessage(`{"pattern": "*", "path": "gone"}`)); err == nil {
		t.Error("a missing directory was accepted")
	}
}

func TestUnreadableDirectoryIsToldAndTheRestFound(t *testing.T) {
	if os.Geteuid() == 0 {
		t.Skip("root reads everything")
	}
	dir := tree(t, map[string]string{"a/f": "hit", "b/f": "hit"})
	if err := os.Chmod(filepath.Join(dir, "a"), 0); err != nil {
		t.Fatal(err)
	}
	r := find(t, dir, map[string]any{"pattern": "hit"})
	if r.Total != 1 || len(r.Errors) != 1 {
		t.Errorf("%+v", r)
	}
}

func TestMemoryTakenDoesNotGrowWithTheNumberOfFiles(t *testing.T) {
	const files, most = 2000, 16 << 20
	dir := t.TempDir()
	for i := range files {
		if err := os.WriteFile(filepath.Join(dir, strconv.Itoa(i)), []byte("x\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	raw, err := json.Marshal(map[string]any{"pattern": "nowhere", "path": dir})
	if err != nil {
		t.Fatal(err)
	}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	if _, err := Search(t.Context(), dir, raw); err != nil {
		t.Fatal(err)
	}
	runtime.ReadMemStats(&after)
	if taken := after.TotalAlloc - before.TotalAlloc; taken > most {
		t.Errorf("%d MiB were taken for %d files of two bytes", taken>>20, files)
	}
}
