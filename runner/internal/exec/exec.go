package exec

import (
	"encoding/json"
	"fmt"
	"log"
	"os"
	"strconv"
	"time"

	"hermes-exec/runner/internal/channel"
	"hermes-exec/runner/internal/ipc"
	"hermes-exec/runner/internal/output"
	"hermes-exec/runner/internal/pipe"
	"hermes-exec/runner/internal/session"
	"hermes-exec/runner/internal/slots"
	"hermes-exec/runner/internal/wire"
)

// live maps a stream to the channel of its live output.
var live = [...]uint16{output.Stdout: 5, output.Stderr: 6}

const (
	// startedDelay is how long news of a start may wait for something that
	// goes with it: most commands are over by then, and one write is saved.
	startedDelay = 20 * time.Millisecond
	// readingDelay is how long output may wait in its pipe. A command that is
	// over by then is spared all that it takes to wait for output.
	readingDelay = 2 * time.Millisecond
	// holdTime is how long a start may be kept back for its exit, by a slot that
	// has nothing else to do: a shell's own start takes half of it on a machine
	// that is not busy.
	holdTime = 5 * time.Millisecond
)

// usage is what a process took, without its living descendants.
type usage struct {
	UserS   float64 `json:"user_s"`
	SystemS float64 `json:"system_s"`
	MaxRSS  int64   `json:"max_rss_bytes"`
}

// exitResult is Exit of docs/protocol.md. What most commands have nothing to
// say of is left out: the driver would spend more time on it than on the rest.
type exitResult struct {
	ExitCode    int              `json:"exit_code"`
	Signal      *int             `json:"signal,omitempty"`
	TimedOut    bool             `json:"timed_out,omitempty"`
	Canceled    bool             `json:"canceled,omitempty"`
	OOMKilled   bool             `json:"oom_killed,omitempty"`
	DurationS   float64          `json:"duration_s"`
	Usage       usage            `json:"usage"`
	Stdout      output.Kept      `json:"stdout,omitzero"`
	Stderr      output.Kept      `json:"stderr,omitzero"`
	Merged      output.Kept      `json:"merged,omitzero"`
	Segments    []output.Segment `json:"segments,omitempty"`
	Spill       *ipc.Bytes       `json:"spill_path,omitempty"`
	StderrSpill *ipc.Bytes       `json:"stderr_spill_path,omitempty"`
	Killed      *ipc.Receipt     `json:"killed,omitempty"`
	Started     bool             `json:"started"`
	Reason      *string          `json:"reason,omitempty"`
	Cwd         *ipc.Bytes       `json:"cwd,omitempty"`
	StateLost   string           `json:"state_lost,omitempty"`
	DiskFull    bool             `json:"disk_nearly_full,omitempty"`
}

func (r *exitResult) take(e ipc.Exit) {
	r.ExitCode, r.OOMKilled = e.ExitCode, e.OOMKilled
	if e.Signal != 0 {
		r.Signal = &e.Signal
	}
	r.Usage = usage{e.UserS, e.SystemS, e.MaxRSS}
}

func (r *Runner) execRun(c *channel.Conversation, params json.RawMessage) (any, error) {
	var p commandParams
	if err := channel.Decode(params, &p); err != nil {
		return nil, err
	}
	if err := p.check(r.Memory); err != nil {
		return nil, err
	}
	if p.PTY != nil || p.Tag != nil {
		return nil, channel.BadRequest("exec.run takes neither pty nor tag")
	}
	slot, agent, err := r.Slot(c.Ctx, p.Slot)
	if err != nil {
		return nil, err
	}
	if p.Session != "" {
		return r.runInSession(c, slot, agent, &p)
	}
	l := launch{
		token: c.ID, argv: p.Argv, env: environment(agent.Env, p.Env), cwd: directory(agent, p.Cwd),
		user: p.User, merge: p.MergeStderr, stdin: p.Stdin,
	}
	if p.Shell != nil {
		if agent.Shell == "" {
			return r.notStarted(c, &p, slot, noShell())
		}
		script, err := shellArgv(agent.Shell, string(*p.Shell))
		if err != nil {
			return nil, err
		}
		defer pipe.CloseFiles(script.files)
		l.argv, l.extra = script.argv, script.files
	}
	result, _, err := r.run(c, slot, agent, &p, l)
	return result, err
}

func noShell() ipc.Spawned {
	return ipc.Spawned{ExitCode: 127, Reason: "this image has no shell: pass the command as a list of arguments"}
}

// script is a shell with the text that it runs.
type script struct {
	argv  []ipc.Bytes
	files []*os.File // to become 3, 4, …
}

// shellArgv gives a short text as an argument, and a long one as a file: an
// argument holds at most 128 KiB. Both are `shell -c` with the shell as $0.
func shellArgv(shell, text string) (script, error) {
	if len(text) <= maxShortScript {
		argv := []ipc.Bytes{ipc.Bytes(shell)}
		for _, argument := range session.Text(text) {
			argv = append(argv, ipc.Bytes(argument))
		}
		return script{argv: argv}, nil
	}
	file, err := pipe.MemoryFile("script", "exec 3<&-; "+text)
	if err != nil {
		return script{}, err
	}
	return script{argv: []ipc.Bytes{ipc.Bytes(shell), "-c", ipc.Bytes(". " + pipe.FDPath(3)), ipc.Bytes(shell)},
		files: []*os.File{file}}, nil
}

// run starts a command, waits for its end and returns its result.
func (r *Runner) run(c *channel.Conversation, slot *Slot, agent *slots.Agent, p *commandParams,
	l launch) (*exitResult, ipc.Exit, error) {
	var none ipc.Exit
	// A slot's commands that are under way at the same time would wait for each
	// other: few can be held.
	alone := slot.running.Add(1) == 1
	defer slot.running.Add(-1)
	l.hold = alone && !p.Stream && !p.Stdin && (p.TimeoutS == nil || *p.TimeoutS > startedDelay.Seconds())
	cmd, err := r.start(slot, agent, l)
	if err != nil {
		return nil, none, err
	}
	if !cmd.spawned.Started {
		cmd.closePipes()
		result, err := r.notStarted(c, p, slot, cmd.spawned)
		return result, none, err
	}
	slot.views.Start(c.ID, cmd.spawned.PID, p.text)
	collector := output.NewCollector(p.limit(), slot.spills, strconv.FormatUint(c.ID, 10), r.Memory)
	defer collector.Close()
	pumps := pumpsOf(cmd, func(stream int) func([]byte) {
		return sinkFor(c, slot, collector, stream, live[stream], p.Stream)
	})
	if l.saved != nil {
		pumps = append(pumps, l.saved)
	}
	if p.Stream {
		c.Event(startedEvent(cmd), true)
		pumps.start()
	}
	if cmd.stdin != nil {
		go feed(c, cmd.stdin, r.log)
	}
	result := &exitResult{Started: true}
	exit, err := r.await(c, cmd, pumps, p, result)
	if cmd.stdin != nil {
		c.DiscardInput()
		_ = cmd.stdin.Close()
	}
	if err != nil {
		cmd.closePipes()
		return nil, exit, err
	}
	result.DurationS = time.Since(cmd.started).Seconds()
	result.take(exit)
	result.DiskFull = r.slots.DiskNearlyFull(slot.id)
	pumps.finish()
	slot.views.End(c.ID, result.ExitCode)
	return result, exit, sendKept(c, result, collector.Finish())
}

// notStarted is the result for a program that could not be executed. The
// reason is on stderr too, where a shell would have put it.
func (r *Runner) notStarted(c *channel.Conversation, p *commandParams, slot *Slot,
	why ipc.Spawned) (*exitResult, error) {
	collector := output.NewCollector(p.limit(), nil, "", r.Memory)
	defer collector.Close()
	stream := output.Stderr
	if p.MergeStderr {
		stream = output.Stdout
	}
	sinkFor(c, slot, collector, stream, live[stream], p.Stream)([]byte(why.Reason + "\n"))
	result := &exitResult{ExitCode: why.ExitCode, Reason: &why.Reason}
	return result, sendKept(c, result, collector.Finish())
}

func sinkFor(c *channel.Conversation, slot *Slot, collector *output.Collector, stream int, live uint16,
	streaming bool) func([]byte) {
	if !streaming {
		return func(p []byte) {
			collector.Write(stream, p)
			slot.views.Output(c.ID, stream, p)
		}
	}
	return func(p []byte) {
		collector.Write(stream, p)
		slot.views.Output(c.ID, stream, p)
		if c.Fragments() > manyFragments {
			time.Sleep(fragmentPause)
		}
		// The end of the conversation does not end the command's output.
		_ = c.Send(live, p, false)
	}
}

// feed writes the driver's input to the command. Whether the command reads it
// is the command's business.
func feed(c *channel.Conversation, stdin *os.File, log *log.Logger) {
	defer channel.Contain(log, "input")
	_, err := c.Receive(c.Ctx, func(piece []byte) error {
		_, err := stdin.Write(piece)
		return err
	})
	if err != nil {
		c.DiscardInput()
		c.GrantInput()
	}
	_ = stdin.Close()
}

func startedEvent(cmd *command) []byte {
	return []byte(`{"event":"started","pid":` + strconv.Itoa(cmd.spawned.PID) + `}`)
}

// await waits for the exit of a command, and ends it at its timeout, when the
// driver cancels, or with the slot.
func (r *Runner) await(c *channel.Conversation, cmd *command, pumps pumps, p *commandParams,
	result *exitResult) (ipc.Exit, error) {
	select {
	case exit := <-cmd.exit:
		return cmd.over(exit) // before there are timers
	default:
	}
	expired, stop := timerFor(p.TimeoutS)
	defer stop()
	delay, reading := readingDelay, false
	if cmd.held {
		pumps.start()
		delay, reading = startedDelay-holdTime, true
	}
	late := time.NewTimer(delay)
	defer late.Stop()
	for {
		select {
		case exit := <-cmd.exit:
			return cmd.over(exit)
		case <-late.C:
			if !reading {
				reading = true
				pumps.start()
				late.Reset(startedDelay - readingDelay)
				continue
			}
			pumps.startLate()
			if p.Stream {
				c.Flush()
			} else {
				c.Event(startedEvent(cmd), false)
			}
			continue
		case <-cmd.slot.ctx.Done():
			return ipc.Exit{}, cmd.slot.cause()
		case <-expired:
			result.TimedOut = true
		case <-c.Ctx.Done():
			result.Canceled = true
		}
		return r.endCommand(cmd, result)
	}
}

// over is the exit of a command, unless its slot has ended: then it may have
// been ended with that, and how is no result.
func (c *command) over(exit ipc.Exit) (ipc.Exit, error) {
	if c.slot.ctx.Err() != nil {
		return ipc.Exit{}, c.slot.cause()
	}
	return exit, nil
}

func (r *Runner) endCommand(cmd *command, result *exitResult) (ipc.Exit, error) {
	receipt, err := cmd.slot.kill(cmd.token)
	if err != nil {
		return ipc.Exit{}, err
	}
	result.Killed = &receipt
	timer := time.NewTimer(afterKill)
	defer timer.Stop()
	select {
	case exit := <-cmd.exit:
		return cmd.over(exit)
	case <-cmd.slot.ctx.Done():
		return ipc.Exit{}, cmd.slot.cause()
	case <-timer.C:
		r.forgetExit(cmd.token)
		return ipc.Exit{Token: cmd.token, ExitCode: 128 + 9, Signal: 9}, nil
	}
}

// sendKept sends what was kept of the output and describes it in the result.
func sendKept(c *channel.Conversation, result *exitResult, kept output.Result) error {
	result.Stdout, result.Stderr, result.Merged, result.Segments = kept.Stdout, kept.Stderr, kept.Merged, kept.Segments
	if kept.StdoutSpill != "" {
		path := ipc.Bytes(kept.StdoutSpill)
		result.Spill = &path
	}
	if kept.StderrSpill != "" {
		path := ipc.Bytes(kept.StderrSpill)
		result.StderrSpill = &path
	}
	for channel, parts := range [][][]byte{output.Stdout: kept.StdoutParts, output.Stderr: kept.StderrParts} {
		for _, part := range parts {
			if err := c.Send(uint16(channel), part, true); err != nil {
				return fmt.Errorf("output: %w", err)
			}
		}
	}
	if kept.EachMerged == nil {
		return nil
	}
	// The pieces may be as short as a byte.
	buffer := pipe.Buffers.Get().(*[wire.MaxData]byte)
	defer pipe.Buffers.Put(buffer)
	filled := 0
	var err error
	kept.EachMerged(func(part []byte) {
		for len(part) > 0 && err == nil {
			n := copy(buffer[filled:], part)
			part, filled = part[n:], filled+n
			if filled == len(buffer) {
				err, filled = c.Send(output.Merged, buffer[:], true), 0
			}
		}
	})
	if err == nil {
		err = c.Send(output.Merged, buffer[:filled], true)
	}
	return err
}
