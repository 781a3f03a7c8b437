package main

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"hermes-exec/runner/internal/ipc"
)

type program func(args []string) error

var programs = map[string]program{
	"echo": func(a []string) error { return printWords(os.Stdout, a) },
	"err":  func(a []string) error { return printWords(os.Stderr, a) },
	"args": func(a []string) error { return json.NewEncoder(os.Stdout).Encode(a) },
	"id": func([]string) error {
		return printWords(os.Stdout, []string{fmt.Sprint(os.Getuid()), fmt.Sprint(os.Getgid())})
	},
	"env": env, "cat": cat, "write": write, "append": appendByte,
	"symlink": func(a []string) error { return os.Symlink(arg(a, 0), arg(a, 1)) },
	"link":    func(a []string) error { return os.Link(arg(a, 0), arg(a, 1)) },
	"fifo":    func(a []string) error { return syscall.Mkfifo(arg(a, 0), 0o600) },
	"sleep":   sleep, "exit": exit, "cwd": cwd, "spew": spew, "alternate": alternate,
	"signal": raise, "stubborn": stubborn, "grow": grow, "count": count, "sum": sum, "fds": fds, "status": status,
	"open": open, "fill": fill, "kill": kill, "ps": ps, "ptrace": ptrace, "namespace": namespace, "tty": tty,
	"umask": umask,
	"leave": leave, "tree": tree, "bomb": bomb, "many": many, "daemon": daemon,
	"listen": listen, "dial": dial, "abstract": abstract, "reach": reach, "talk": talk,
}

func main() { os.Exit(run(os.Args[1:])) }

// run runs the applet args[0] and returns its exit code.
func run(args []string) int {
	if len(args) == 0 || programs[args[0]] == nil {
		fmt.Fprintln(os.Stderr, "no such applet")
		return 2
	}
	if err := programs[args[0]](args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, args[0]+":", err)
		return 1
	}
	return 0
}

func arg(args []string, i int) string {
	if i < len(args) {
		return args[i]
	}
	return ""
}

func number(args []string, i int) int {
	n, _ := strconv.Atoi(arg(args, i))
	return n
}

func seconds(args []string, i int) time.Duration {
	s, _ := strconv.ParseFloat(arg(args, i), 64)
	return time.Duration(s * float64(time.Second))
}

// printOutcome prints `ok` or the name of the system error. Where a check expects a refusal, the
// name is the result and not a failure.
func printOutcome(err error) error {
	word := "ok"
	var errno syscall.Errno
	if errors.As(err, &errno) {
		word = ipc.ErrnoName(errno)
	} else if err != nil {
		word = err.Error()
	}
	_, err = fmt.Println(word)
	return err
}

func printWords(out io.Writer, words []string) error {
	_, err := fmt.Fprintln(out, strings.Join(words, " "))
	return err
}

func env(args []string) error {
	if len(args) > 0 {
		value, ok := os.LookupEnv(args[0])
		if !ok {
			return errors.New("not set")
		}
		return printWords(os.Stdout, []string{value})
	}
	all := os.Environ()
	slices.Sort(all)
	_, err := fmt.Println(strings.Join(all, "\n"))
	return err
}

func cat(args []string) error {
	if len(args) == 0 {
		_, err := io.Copy(os.Stdout, os.Stdin)
		return err
	}
	for _, name := range args {
		data, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		if _, err := os.Stdout.Write(data); err != nil {
			return err
		}
	}
	return nil
}

func write(args []string) error {
	out, err := os.Create(arg(args, 0))
	if err != nil {
		return err
	}
	_, err = io.Copy(out, os.Stdin)
	return errors.Join(err, out.Close())
}

// appendByte adds one byte to a file, so that the size of the file counts how often a command ran.
func appendByte(args []string) error {
	out, err := os.OpenFile(arg(args, 0), os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o644)
	if err != nil {
		return err
	}
	_, err = out.Write([]byte("x"))
	return errors.Join(err, out.Close())
}

func sleep(args []string) error {
	time.Sleep(seconds(args, 0))
	return nil
}

func exit(args []string) error {
	os.Exit(number(args, 0))
	return nil
}

func cwd([]string) error {
	dir, err := os.Getwd()
	if err != nil {
		return err
	}
	return printWords(os.Stdout, []string{dir})
}

// spew writes the given number of bytes to stdout or stderr, as repeated digits.
func spew(args []string) error {
	out := os.Stdout
	if arg(args, 1) == "err" {
		out = os.Stderr
	}
	block := []byte(strings.Repeat("0123456789", 6553))
	for left := number(args, 0); left > 0; {
		n, err := out.Write(block[:min(left, len(block))])
		if err != nil {
			return err
		}
		left -= n
	}
	return nil
}

// alternate writes numbered lines to stdout and stderr in turn.
func alternate(args []string) error {
	for i := range number(args, 0) {
		fmt.Fprintf(os.Stdout, "out %d\n", i)
		time.Sleep(seconds(args, 1))
		fmt.Fprintf(os.Stderr, "err %d\n", i)
		time.Sleep(seconds(args, 1))
	}
	return nil
}

func raise(args []string) error {
	signal.Reset()
	if err := syscall.Kill(os.Getpid(), syscall.Signal(number(args, 0))); err != nil {
		return err
	}
	time.Sleep(5 * time.Second)
	return errors.New("still here")
}

// stubborn ignores all signals that can be ignored, prints `ready` and sleeps.
func stubborn(args []string) error {
	signal.Ignore(syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP, syscall.SIGQUIT)
	fmt.Println("ready")
	time.Sleep(seconds(args, 0))
	return nil
}

// grow allocates and touches the given number of MiB, and sleeps.
func grow(args []string) error {
	var all [][]byte
	for range number(args, 0) {
		block := make([]byte, 1<<20)
		for i := 0; i < len(block); i += 4096 {
			block[i] = 1
		}
		all = append(all, block)
	}
	fmt.Println("grown")
	time.Sleep(seconds(args, 1))
	runtime.KeepAlive(all)
	return nil
}

func count([]string) error {
	n, err := io.Copy(io.Discard, os.Stdin)
	fmt.Println(n)
	return err
}

func sum([]string) error {
	h := sha256.New()
	_, err := io.Copy(h, os.Stdin)
	fmt.Println(hex.EncodeToString(h.Sum(nil)))
	return err
}

// fds lists the descriptors that the process inherited.
func fds([]string) error {
	var list []string
	for fd := range 256 {
		var s syscall.Stat_t
		if fd < 3 || syscall.Fstat(fd, &s) != nil {
			continue
		}
		target, _ := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", fd))
		if strings.HasPrefix(target, "anon_inode:") || strings.HasPrefix(target, "/sys/fs/cgroup/") {
			continue // of the Go runtime
		}
		list = append(list, fmt.Sprintf("%d=%s", fd, target))
	}
	return printWords(os.Stdout, list)
}

// status prints the lines of /proc/self/status that begin with one of the words.
func status(args []string) error {
	data, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return err
	}
	for line := range strings.SplitSeq(string(data), "\n") {
		key, _, _ := strings.Cut(line, ":")
		if slices.Contains(args, key) {
			fmt.Println(line)
		}
	}
	return nil
}

// open tries to open a path for r(eading), w(riting) or c(reating).
func open(args []string) error {
	flags := map[string]int{"r": os.O_RDONLY, "w": os.O_WRONLY, "c": os.O_WRONLY | os.O_CREATE}[arg(args, 1)]
	file, err := os.OpenFile(arg(args, 0), flags|syscall.O_NONBLOCK, 0o666)
	if err == nil {
		file.Close()
	}
	return printOutcome(err)
}

// fill writes up to the given number of MiB into a file and prints the error that stopped it.
func fill(args []string) error {
	file, err := os.Create(arg(args, 0))
	if err != nil {
		return printOutcome(err)
	}
	block := make([]byte, 1<<20)
	for range number(args, 1) {
		if _, err = file.Write(block); err != nil {
			break
		}
	}
	return printOutcome(errors.Join(err, file.Close()))
}

func umask([]string) error {
	_, err := fmt.Printf("%03o\n", syscall.Umask(0))
	return err
}

func tty([]string) error {
	info, err := os.Stdin.Stat()
	if err != nil {
		return err
	}
	if info.Mode()&os.ModeCharDevice == 0 || info.Mode()&os.ModeDevice == 0 {
		return printWords(os.Stdout, []string{"no"})
	}
	rows, cols, err := windowSize(0)
	if err != nil {
		return printWords(os.Stdout, []string{"no"})
	}
	_, err = fmt.Printf("%d %d\n", rows, cols)
	return err
}
