package process

import (
	"bytes"
	"os"
	"syscall"
	"unsafe"

	"hermes-exec/runner/internal/ipc"
	"hermes-exec/runner/internal/pipe"
)

// maxTypedLine is how much of an unfinished line is written to a terminal at a time. In canonical
// mode Linux holds 4,095 bytes of it, and drops the rest without an error.
const maxTypedLine = 4094

var errLongLine = &ipc.Error{Kind: "os", Errno: "EMSGSIZE", Message: "the terminal holds 4,095 bytes of a line, " +
	"and its end-of-file character, which passes on a part of a line, is disabled (stty eof undef)"}

// enter writes input to the process and returns how much of it was written.
//
// On a terminal in canonical mode, which waits for whole lines, a long line gets the end-of-file
// character after each part: the program then reads this part without waiting for the rest. Because
// the character would end the input of an empty line, it always follows an ordinary byte.
func (p *process) enter(input []byte) (written int, err error) {
	if p.terminal == nil {
		return p.stdin.Write(input)
	}
	for written < len(input) {
		part, end, err := p.nextPart(input[written:])
		if err != nil {
			return written, err
		}
		n, err := p.stdin.Write(append(part[:len(part):len(part)], end...))
		written += min(n, len(part))
		if err != nil {
			return written, err
		}
	}
	return written, nil
}

// nextPart returns the part of the input to write next, and the character to write after it. It
// counts the bytes of the unfinished line.
func (p *process) nextPart(input []byte) (part, end []byte, err error) {
	settings, _ := settingsOf(p.terminal)
	canonical, eof := settings.Lflag&syscall.ICANON != 0, settings.Cc[syscall.VEOF]
	for i, c := range input {
		switch p.lineBytes++; {
		case c == '\n', c == '\r' && (!canonical || settings.Iflag&syscall.ICRNL != 0),
			c == eof && eof != pipe.NoCharacter:
			p.lineBytes = 0
		case canonical && p.lineBytes >= maxTypedLine && bytes.IndexByte(settings.Cc[:], c) < 0:
			if eof == pipe.NoCharacter {
				return nil, nil, errLongLine
			}
			p.lineBytes = 0
			return input[:i+1], []byte{eof}, nil
		}
		if i+1 >= maxTypedLine {
			return input[:i+1], nil, nil // the program may have changed the mode meanwhile
		}
	}
	return input, nil, nil
}

// endOfInput returns what ends the input of a terminal: ^D unless its program has chosen another
// character (stty eof). It may be disabled.
func (p *process) endOfInput() (end []byte, disabled bool) {
	const usual = 4
	settings, known := settingsOf(p.terminal)
	switch chosen := settings.Cc[syscall.VEOF]; {
	case !known:
		end = []byte{usual}
	case chosen == pipe.NoCharacter && settings.Lflag&syscall.ICANON != 0:
		return nil, true
	case chosen == pipe.NoCharacter:
		end = []byte{usual}
	default:
		end = []byte{chosen}
	}
	if p.lineBytes > 0 {
		end = append(end, end[0]) // the first one only ends the line
	}
	return end, false
}

// settingsOf returns the settings of a terminal, which its program may change at any time.
func settingsOf(terminal *os.File) (settings syscall.Termios, known bool) {
	raw, err := terminal.SyscallConn()
	if err != nil {
		return settings, false
	}
	errno := syscall.ENOTTY
	err = raw.Control(func(fd uintptr) {
		_, _, errno = syscall.Syscall(syscall.SYS_IOCTL, fd, pipe.GetTerminal, uintptr(unsafe.Pointer(&settings)))
	})
	return settings, err == nil && errno == 0
}
