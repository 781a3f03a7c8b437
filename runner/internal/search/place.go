package search

import (
	"os"
	"strings"
)

// place is where a search looks, and for which paths.
type place struct {
	base    string // the directory or file that the paths of the result begin with
	start   string // the directory below base where the walk starts, "" for base itself
	pattern string // of paths below base
	depth   int    // of the deepest match below start; 0: no limit
	hidden  bool   // the pattern has hidden names
	filters []*nameFilter
}

// locate moves the literal directories of a pattern of paths to the start of the walk, so that
// `/etc/*.conf` does not walk the whole machine. The base changes only if the pattern leads out of
// asked.
func locate(workdir, asked, pattern string) place {
	w := place{base: asked}
	outside := false
	if strings.HasPrefix(pattern, "/") {
		root := strings.TrimSuffix(absolute(workdir, strings.TrimSuffix(asked, ".")), "/")
		rest, ok := strings.CutPrefix(pattern, root+"/")
		if outside = !ok; outside {
			root, rest = "/", pattern
		}
		w.base, pattern = root+"/", rest
	}
	for {
		head, rest, ok := strings.Cut(pattern, "/")
		if !ok || strings.ContainsAny(head, metaCharacters) {
			break
		}
		switch {
		case head == "" || head == ".":
		case outside || head == "..":
			w.base, w.start = below(below(w.base, w.start), head), ""
		default:
			w.start = join(w.start, head)
		}
		pattern = rest
	}
	w.pattern = join(w.start, pattern)
	w.hidden = namesHidden(pattern)
	if !strings.Contains(pattern, "**") {
		w.depth = strings.Count(pattern, "/") + 1
	}
	return w
}

func below(dir, name string) string {
	if name == "" {
		return dir
	}
	return string(displayPath(dir, name))
}

// namesHidden reports whether a part of the pattern starts with a dot.
func namesHidden(pattern string) bool {
	starts := true
	for _, c := range pattern {
		switch c {
		case '/', '{', ',':
			starts = true
		case '.':
			if starts {
				return true
			}
		case '\\':
		default:
			starts = false
		}
	}
	return false
}

// isDirectory reports whether the start of the walk is a directory.
func isDirectory(workdir string, w place) (bool, error) {
	path, err := Resolve(workdir, below(w.base, w.start))
	if err != nil {
		return false, err
	}
	info, err := os.Stat(path)
	return err == nil && info.IsDir(), nil
}

// place returns where the search looks: for names that match its pattern, if it lists files, and its
// glob.
func (p *params) place(workdir string) (place, error) {
	where := place{base: string(p.Path)}
	var patterns []string
	if p.Target == "files" && p.Pattern != "" {
		patterns = append(patterns, string(p.Pattern))
	}
	if p.Glob != nil && *p.Glob != "" {
		patterns = append(patterns, string(*p.Glob))
	}
	located := false
	for _, pattern := range patterns {
		pattern = strings.TrimPrefix(pattern, "./")
		paths := strings.Contains(pattern, "/")
		hidden := namesHidden(pattern)
		if paths && !located {
			if strings.HasSuffix(pattern, "/") {
				pattern += "**" // everything below
			}
			at := locate(workdir, where.base, pattern)
			where.base, where.start, where.depth = at.base, at.start, at.depth
			located, pattern, hidden = true, at.pattern, at.hidden
		}
		where.hidden = where.hidden || hidden
		filter, err := newNameFilter(pattern, paths)
		if err != nil {
			return where, err
		}
		where.filters = append(where.filters, filter)
	}
	return where, nil
}

func (w place) wants(relative, name string) bool {
	for _, f := range w.filters {
		if !f.match(relative, name) {
			return false
		}
	}
	return true
}
