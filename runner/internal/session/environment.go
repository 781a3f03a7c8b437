package session

import (
	"slices"
	"strconv"
	"strings"
)

// ReplaceEnvironment moves a session from the environment of a slot to that of another one. A
// variable that still has its value in from gets its value in to, or is removed; a variable that
// only to has is added. Variables that the session has changed or unset stay so.
func (s *State) ReplaceEnvironment(from, to []string) {
	before, after := environmentValues(from), environmentValues(to)
	env := slices.Clone(s.env)
	s.odd = slices.Clone(s.odd)
	if s.saved != nil {
		next := *s.saved
		next.vars = map[string]string{}
		for name, commands := range s.saved.vars {
			next.vars[name] = commands
		}
		s.saved = &next
	}
	names := map[string]bool{}
	for _, values := range []map[string]string{before, after} {
		for name := range values {
			names[name] = true
		}
	}
	for _, name := range sortKeys(names) {
		was, had := before[name]
		is, has := after[name]
		if had == has && was == is {
			continue
		}
		env = replaceEntry(env, name, was, had, is, has)
		switch {
		case !identifier(name) && !strings.HasPrefix(name, "BASH_FUNC_"):
			s.odd = replaceEntry(s.odd, name, was, had, is, has)
		case identifier(name) && s.saved != nil && s.family.isVariable(s, name):
			replaceVariable(s.saved.vars, name, was, had, is, has)
		}
	}
	s.env = env
}

// Move is the change from one directory to another, in texts that contain paths below it. The zero value
// changes nothing.
type Move struct{ From, To string }

// Text returns a text with the changed paths.
func (m Move) Text(text string) string {
	if m.From == m.To {
		return text
	}
	return strings.ReplaceAll(text, m.From+"/", m.To+"/")
}

// ReplacePaths changes the paths in the state: of the session's directory, and in its variables and
// functions.
func (s *State) ReplacePaths(m Move) {
	if m.From == m.To {
		return
	}
	entries := func(list []string) []string {
		list = slices.Clone(list)
		for i, entry := range list {
			list[i] = m.Text(entry)
		}
		return list
	}
	s.cwd, s.env, s.odd = m.Text(s.cwd), entries(s.env), entries(s.odd)
	if s.saved == nil {
		return
	}
	next := *s.saved
	next.vars = make(map[string]string, len(s.saved.vars))
	for name, commands := range s.saved.vars {
		next.vars[name] = m.Text(commands)
	}
	next.before, next.after = m.Text(next.before), m.Text(next.after)
	s.saved = &next
}

// environmentValues returns the values of entries KEY=VALUE, of which the last one of a name counts.
func environmentValues(entries []string) map[string]string {
	values := map[string]string{}
	for _, entry := range entries {
		name, value, _ := strings.Cut(entry, "=")
		values[name] = value
	}
	return values
}

func replaceEntry(env []string, name, was string, had bool, is string, has bool) []string {
	at := slices.IndexFunc(env, func(entry string) bool { return strings.HasPrefix(entry, name+"=") })
	switch {
	case at < 0 && (had || !has):
		return env
	case at < 0:
		return append(env, name+"="+is)
	case !had || env[at] != name+"="+was:
		return env
	case has:
		env[at] = name + "=" + is
		return env
	}
	return slices.Delete(env, at, at+1)
}

func replaceVariable(vars map[string]string, name, was string, had bool, is string, has bool) {
	commands, exists := vars[name]
	if !exists {
		if !had && has {
			vars[name] = name + "=" + quote(is) + "\nexport " + name + "\n"
		}
		return
	}
	at := strings.Index(commands, name+"=")
	if !had || at < 0 {
		return
	}
	at += len(name) + 1
	size := constantSize(commands[at:])
	if value, ok := unquote(commands[at : at+size]); !ok || value != was {
		return
	}
	if has {
		vars[name] = commands[:at] + quote(is) + commands[at+size:]
	} else {
		delete(vars, name)
	}
}

// escapes are the letters after a backslash in $'…' as bash prints it.
var escapes = map[byte]byte{'a': '\a', 'b': '\b', 'e': '\x1b', 'E': '\x1b', 'f': '\f', 'n': '\n', 'r': '\r', 't': '\t',
	'v': '\v'}

// unquote returns the value of a word as a shell prints a constant. ok is false for other words, such as arrays.
func unquote(word string) (value string, ok bool) {
	var b strings.Builder
	quoted := byte(0) // ' or ", or $ in $'…'
	for i := 0; i < len(word); i++ {
		c := word[i]
		switch {
		case quoted == '\'' && c != '\'', quoted == '"' && c != '"' && c != '\\',
			quoted == '$' && c != '\'' && c != '\\':
			b.WriteByte(c)
		case quoted == 0 && c == '$' && strings.HasPrefix(word[i:], "$'"):
			quoted, i = '$', i+1
		case c == '\'' && quoted != 0, c == '"' && quoted == '"':
			quoted = 0
		case c == '\'' || c == '"':
			quoted = c
		case c == '\\' && i+1 < len(word):
			i++
			switch octal, err := strconv.ParseUint(word[i:min(i+3, len(word))], 8, 8); {
			case quoted != '$' && quoted != '"', quoted == '"' && strings.IndexByte("$`\"\\", word[i]) >= 0:
				b.WriteByte(word[i])
			case quoted == '"':
				b.WriteString(word[i-1 : i+1])
			case err == nil:
				b.WriteByte(byte(octal))
				i += 2
			case escapes[word[i]] != 0:
				b.WriteByte(escapes[word[i]])
			default:
				b.WriteByte(word[i])
			}
		case c == '(' || c == '$' || c == '`':
			return "", false
		default:
			b.WriteByte(c)
		}
	}
	return b.String(), quoted == 0
}
