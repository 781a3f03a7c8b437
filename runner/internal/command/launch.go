package command

import (
	"errors"
	"os"
	"slices"
	"strings"

	"hermes-exec/runner/internal/ipc"
	"hermes-exec/runner/internal/pipe"
	"hermes-exec/runner/internal/session"
)

// A command in a terminal gets this variable unless the slot, the session or the call sets it.
const (
	termVariable = "TERM"
	defaultTerm  = "xterm-256color"
)

// Launch returns the launch for p, without its session. The caller closes its Extra files. missing
// is the reason why nothing can be started.
func (p *Params) Launch(scope *Scope, token uint64) (l Launch, missing *ipc.SpawnResult, err error) {
	agent := scope.Agent()
	env := Environment(agent.Env, p.Env)
	base := len(env) - len(p.Env)
	if p.PTY != nil && !slices.ContainsFunc(env, isTerm) {
		env = append(env, termVariable+"="+defaultTerm)
	}
	l = Launch{Token: token, Argv: p.Argv, Env: env, Base: base, Cwd: Directory(agent, p.Cwd),
		User: p.User, Merge: p.MergeStderr, Stdin: p.Stdin, PTY: p.PTY}
	if p.Shell == nil {
		return l, nil, nil
	}
	if agent.Shell == "" {
		return l, &ipc.SpawnResult{ExitCode: 127,
			Reason: "this image has no shell: pass the command as a list of arguments"}, nil
	}
	l.Argv, l.Extra, err = shellArgv(agent.Shell, string(*p.Shell))
	return l, nil, err
}

func isTerm(entry ipc.Bytes) bool { return strings.HasPrefix(string(entry), termVariable+"=") }

// SessionEnv returns the call's variables for a command of a session. exports reports whether the
// session exports a variable.
func (p *Params) SessionEnv(exports func(name string) bool) map[string]string {
	env := map[string]string{}
	for name, value := range p.Env {
		env[name] = string(value)
	}
	if _, given := env[termVariable]; p.PTY != nil && !given && !exports(termVariable) {
		env[termVariable] = defaultTerm
	}
	return env
}

// shellArgv passes a short text as an argument and a long text as a file, because an argument holds
// at most 128 KiB. Both are `shell -c` with the shell as $0.
func shellArgv(shell, text string) (argv []ipc.Bytes, files []*os.File, err error) {
	if len(text) <= maxShortScript {
		argv = []ipc.Bytes{ipc.Bytes(shell)}
		for _, argument := range session.ShellArgs(text) {
			argv = append(argv, ipc.Bytes(argument))
		}
		return argv, nil, nil
	}
	file, err := pipe.MemoryFile("script", "exec 3<&-; "+text)
	if err != nil {
		return nil, nil, err
	}
	argv = []ipc.Bytes{ipc.Bytes(shell), "-c", ipc.Bytes(". " + pipe.FDPath(3)), ipc.Bytes(shell)}
	return argv, []*os.File{file}, nil
}

// IsDirectoryError reports whether err means that the directory cwd is missing or cannot be
// entered.
func IsDirectoryError(err error, cwd string) bool {
	var e *ipc.Error
	if !errors.As(err, &e) || string(e.Path) != cwd {
		return false
	}
	return slices.Contains([]string{"ENOENT", "ENOTDIR", "EACCES", "ELOOP", "ENAMETOOLONG"}, e.Errno)
}
