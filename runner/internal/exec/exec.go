package exec

import (
	"encoding/json"
	"fmt"
	"log"
	"os"
	"strconv"
	"time"

	"hermes-exec/runner/internal/channel"
	"hermes-exec/runner/internal/command"
	"hermes-exec/runner/internal/ipc"
	"hermes-exec/runner/internal/output"
	"hermes-exec/runner/internal/pipe"
	"hermes-exec/runner/internal/wire"
)

// liveChannels maps a stream to the channel of its live output.
var liveChannels = [...]uint16{output.Stdout: 5, output.Stderr: 6}

const (
	// startEventDelay is how long the event of a start may wait for something to travel with it.
	// Most commands end earlier, which saves a write.
	//
	// Not the obvious code: see docs/why-not-obvious.md ("Late readers and late events").
	startEventDelay = 20 * time.Millisecond
	// readDelay is how long output may wait in its pipe. A command that ends earlier needs no
	// goroutine and no poller for its output.
	//
	// Not the obvious code: see docs/why-not-obvious.md ("Late readers and late events").
	readDelay = 2 * time.Millisecond
	// manyFragments is where a reader starts to wait for more bytes at a time.
	manyFragments = 1024
	fragmentPause = 5 * time.Millisecond
)

func (r *Runner) execRun(c *channel.Conversation, params json.RawMessage) (any, error) {
	p, scope, leave, err := r.decodeCommand(c, params)
	if err != nil {
		return nil, err
	}
	defer leave()
	if p.PTY != nil || p.Tag != nil {
		return nil, channel.BadRequest("exec.run takes neither pty nor tag")
	}
	if p.Session != "" && !p.Peek {
		session, err := r.sessions.Find(p.Session, scope)
		if err != nil {
			return nil, err
		}
		return session.Run(c, p, func(l command.Launch) (*command.Result, ipc.Exit, error) {
			return r.run(c, scope, p, l)
		})
	}
	l, missing, err := r.launch(c, scope, p)
	if err != nil {
		return nil, err
	}
	defer pipe.CloseFiles(l.Extra)
	if missing != nil {
		return r.newUnstartedResult(c, p, scope, *missing)
	}
	result, _, err := r.run(c, scope, p, l)
	return result, err
}

// decodeCommand returns the checked params of a request for a command, and the scope of its slot as
// Use returns it.
func (r *Runner) decodeCommand(c *channel.Conversation,
	params json.RawMessage) (p *command.Params, scope *command.Scope, leave func(), err error) {
	p = &command.Params{}
	if err := channel.Decode(params, p); err != nil {
		return nil, nil, nil, err
	}
	if err := p.Check(r.Memory); err != nil {
		return nil, nil, nil, err
	}
	scope, leave, err = r.Use(c.Ctx, p.Slot)
	return p, scope, leave, err
}

// run starts a command, waits for its end and returns its result.
func (r *Runner) run(c *channel.Conversation, scope *command.Scope, p *command.Params,
	l command.Launch) (*command.Result, ipc.Exit, error) {
	var none ipc.Exit
	// Commands of a slot that run at the same time would wait for each other's held replies.
	alone := scope.Running.Add(1) == 1
	defer scope.Running.Add(-1)
	l.Hold = alone && !p.Stream && !p.Stdin && (p.TimeoutS == nil || *p.TimeoutS > startEventDelay.Seconds())
	cmd, err := r.starter.Start(scope, l)
	if err != nil {
		return nil, none, err
	}
	if !cmd.Reply.Started {
		cmd.ClosePipes()
		result, err := r.newUnstartedResult(c, p, scope, cmd.Reply)
		return result, none, err
	}
	scope.Views.Start(c.ID, cmd.Reply.PID, p.Text)
	collector := output.NewCollector(p.Limit(), scope.Spills, strconv.FormatUint(c.ID, 10), r.Memory)
	defer collector.Close()
	pumps := cmd.Pumps(func(stream int) func([]byte) {
		return sinkFor(c, scope, collector, stream, liveChannels[stream], p.Stream)
	})
	if l.Saved != nil {
		pumps = append(pumps, l.Saved)
	}
	if p.Stream {
		c.Event(encodeStartedEvent(cmd), true)
		pumps.Start()
	}
	if cmd.Stdin != nil {
		go feed(c, cmd.Stdin, r.log)
	}
	result := &command.Result{Started: true}
	exit, err := r.await(c, cmd, pumps, p, result, l.Hold)
	if cmd.Stdin != nil {
		c.DiscardInput()
		_ = cmd.Stdin.Close()
	}
	if err != nil {
		cmd.ClosePipes()
		return nil, exit, err
	}
	result.DurationS = time.Since(cmd.Started).Seconds()
	result.SetExit(exit)
	result.DiskFull = r.slots.DiskNearlyFull(scope.ID)
	pumps.Finish()
	scope.Views.End(c.ID, result.ExitCode)
	return result, exit, sendKept(c, result, collector.Finish())
}

// newUnstartedResult returns the result for a program that could not be executed. The reason also
// appears on stderr, where a shell would print it.
func (r *Runner) newUnstartedResult(c *channel.Conversation, p *command.Params, scope *command.Scope,
	why ipc.SpawnResult) (*command.Result, error) {
	collector := output.NewCollector(p.Limit(), nil, "", r.Memory)
	defer collector.Close()
	stream := output.Stderr
	if p.MergeStderr {
		stream = output.Stdout
	}
	sinkFor(c, scope, collector, stream, liveChannels[stream], p.Stream)([]byte(why.Reason + "\n"))
	result := &command.Result{ExitCode: why.ExitCode, Reason: &why.Reason}
	return result, sendKept(c, result, collector.Finish())
}

func sinkFor(c *channel.Conversation, scope *command.Scope, collector *output.Collector, stream int, live uint16,
	streaming bool) func([]byte) {
	if !streaming {
		return func(p []byte) {
			collector.Write(stream, p)
			scope.Views.Output(c.ID, stream, p)
		}
	}
	return func(p []byte) {
		collector.Write(stream, p)
		scope.Views.Output(c.ID, stream, p)
		if c.Fragments() > manyFragments {
			time.Sleep(fragmentPause)
		}
		// The end of the conversation does not end the command's output.
		_ = c.Send(live, p, false)
	}
}

// feed writes the driver's input to the command, which may ignore it.
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

func encodeStartedEvent(cmd *command.Command) []byte {
	return []byte(`{"event":"started","pid":` + strconv.Itoa(cmd.Reply.PID) + `}`)
}

// await waits for the exit of a command. It ends the command at its timeout, when the driver
// cancels, or with the slot.
func (r *Runner) await(c *channel.Conversation, cmd *command.Command, pumps command.Pumps, p *command.Params,
	result *command.Result, held bool) (ipc.Exit, error) {
	select {
	case exit := <-cmd.Exit:
		return cmd.CheckExit(exit) // before any timer is made
	default:
	}
	expired, stop := command.StartTimer(p.TimeoutS)
	defer stop()
	delay, reading := readDelay, false
	if held {
		pumps.Start()
		delay, reading = startEventDelay-command.HoldTimeout, true
	}
	late := time.NewTimer(delay)
	defer late.Stop()
	for {
		select {
		case exit := <-cmd.Exit:
			return cmd.CheckExit(exit)
		case <-late.C:
			if !reading {
				reading = true
				pumps.Start()
				late.Reset(startEventDelay - readDelay)
				continue
			}
			pumps.StartLate()
			if p.Stream {
				c.Flush()
			} else {
				c.Event(encodeStartedEvent(cmd), false)
			}
			continue
		case <-cmd.Scope.Context().Done():
			return ipc.Exit{}, cmd.Scope.Err()
		case <-expired:
			result.TimedOut = true
		case <-c.Ctx.Done():
			result.Canceled = true
		}
		receipt, exit, err := r.starter.Kill(cmd)
		result.Killed = &receipt
		return exit, err
	}
}

// sendKept sends the kept output and describes it in the result.
func sendKept(c *channel.Conversation, result *command.Result, kept output.Result) error {
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
