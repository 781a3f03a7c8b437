package exec

import (
	"bufio"
	"encoding/json"
	"errors"
	"io"
	"slices"

	"hermes-exec/runner/internal/channel"
	"hermes-exec/runner/internal/directories"
	"hermes-exec/runner/internal/ipc"
	"hermes-exec/runner/internal/layers"
	"hermes-exec/runner/internal/rootfs"
	"hermes-exec/runner/internal/sessions"
	"hermes-exec/runner/internal/slots"
	"hermes-exec/runner/internal/wire"
)

// blockSize is the size of a block of a tar archive, of which each entry takes at least one.
const blockSize = 512

// layerContents names a layer with the directories that it changes.
type layerContents struct {
	Layer       string      `json:"layer"`
	Directories []ipc.Bytes `json:"directories"`
}

func checkpointGet(r *Runner, c *channel.Conversation, params json.RawMessage) (any, error) {
	var p struct {
		Variables bool `json:"variables"`
	}
	if err := channel.Decode(params, &p); err != nil {
		return nil, err
	}
	cp, names, err := holdForTransfer(r, c, params)
	if err != nil {
		return nil, err
	}
	defer r.release(cp)
	contents := make([]layerContents, len(cp.stack))
	for i, layer := range cp.stack {
		contents[i] = layerContents{Layer: layer.ID, Directories: []ipc.Bytes{}}
		for _, n := range layer.Parts() {
			contents[i].Directories = append(contents[i].Directories, ipc.Bytes(names[n]))
		}
	}
	result := map[string]any{"layers": contents, "workdir": cp.result.Workdir,
		"sessions": cp.sessions.Export(p.Variables)}
	if cp.holds == directories.HoldsDirectories {
		result["origin"] = cp.layout
	}
	return result, nil
}

// layerNames returns the store of layers of a sandbox, and the names of the directories to which layers
// have changes: paths in the image, or names of a slot's own directories, for which image is nil.
func layerNames(m *slots.Manager, holds string) (store *layers.Store, names []string, image *rootfs.Image, err error) {
	store, image, err = slots.LayerStore(m)
	if holds == directories.HoldsDirectories {
		return store, directories.Names, nil, nil
	}
	if err == nil {
		names = image.LayerDirectories()
	}
	return store, names, image, err
}

// holdCheckpoint returns the checkpoint that a request names with one more use, which the caller ends.
func holdCheckpoint(r *Runner, c *channel.Conversation, params json.RawMessage) (*checkpoint, error) {
	cp, err := r.checkpoints.find(c, params)
	if err == nil && (cp == nil || !r.checkpoints.hold(cp)) {
		err = errNoCheckpoint
	}
	return cp, err
}

// holdForTransfer does so, and returns the names of the directories to which the layers of the
// checkpoint have changes.
func holdForTransfer(r *Runner, c *channel.Conversation, params json.RawMessage) (*checkpoint, []string, error) {
	cp, err := holdCheckpoint(r, c, params)
	if err != nil {
		return nil, nil, err
	}
	_, names, _, err := layerNames(r.slots, cp.holds)
	if err != nil {
		r.release(cp)
	}
	return cp, names, err
}

// partParams name the changes of one layer to one directory.
type partParams struct {
	Checkpoint string    `json:"checkpoint"`
	Layer      string    `json:"layer"`
	Directory  ipc.Bytes `json:"directory"`
	Limit      int64     `json:"limit"`
	StoreLimit int64     `json:"store_limit"`
}

func layerGet(r *Runner, c *channel.Conversation, params json.RawMessage) (any, error) {
	var p partParams
	if err := channel.Decode(params, &p); err != nil {
		return nil, err
	}
	cp, names, err := holdForTransfer(r, c, params)
	if err != nil {
		return nil, err
	}
	defer r.release(cp)
	number := slices.Index(names, string(p.Directory))
	at := slices.IndexFunc(cp.stack, func(l *layers.Layer) bool { return l.ID == p.Layer })
	if at < 0 || !slices.Contains(cp.stack[at].Parts(), number) {
		return nil, channel.BadRequest("layer %q of the checkpoint has no changes to %q", p.Layer, p.Directory)
	}
	sent := &sender{c: c}
	out := bufio.NewWriterSize(sent, wire.MaxData)
	skipped, err := layers.Pack(c.Ctx, cp.stack[at].Path(number), cp.stack[at].Owner, out)
	if err := errors.Join(err, out.Flush()); err != nil {
		return nil, err
	}
	if skipped.Count > 0 { // a copy without them would differ silently
		return nil, &wire.Error{Kind: "too_large", Message: "an archive cannot hold " + skipped.Entries[0]}
	}
	return map[string]any{"bytes": sent.bytes}, nil
}

// sender sends what is written to it on channel 1.
type sender struct {
	c     *channel.Conversation
	bytes int64
}

func (s *sender) Write(data []byte) (int, error) {
	if err := s.c.Send(1, data, false); err != nil {
		return 0, err
	}
	s.bytes += int64(len(data))
	return len(data), nil
}

func layerPut(r *Runner, c *channel.Conversation, params json.RawMessage) (any, error) {
	var p partParams
	if err := channel.Decode(params, &p); err != nil {
		return nil, err
	}
	if !slots.IsID(p.Checkpoint) || p.Limit <= 0 || p.StoreLimit < 0 {
		return nil, channel.BadRequest("layer.put needs a checkpoint's id and a limit")
	}
	holds := directories.HoldsRoot
	if slices.Contains(directories.Names, string(p.Directory)) {
		holds = directories.HoldsDirectories
	}
	store, names, image, err := layerNames(r.slots, holds)
	if err != nil {
		return nil, err
	}
	number := slices.Index(names, string(p.Directory))
	if number < 0 {
		return nil, &wire.Error{Kind: "other_root", Message: "the layer has changes to " + string(p.Directory) +
			", which this sandbox's root divides differently"}
	}
	if r.checkpoints.isKnown(p.Checkpoint) {
		return nil, nil
	}
	if err := store.CheckLimit(p.StoreLimit); err != nil {
		return nil, newFullError(err)
	}
	layer, finish, err := r.arrivals.begin(store, p.Checkpoint, p.Layer, number, image == nil)
	if err != nil || layer == nil {
		return nil, err
	}
	limits := layers.Limits{Bound: layers.Bound{Bytes: p.Limit, Entries: int(p.Limit/blockSize) + 1},
		Owned: image == nil, Take: func(bytes int64) error { return layer.Take(bytes, p.StoreLimit) }}
	if image != nil {
		limits.Directories = image.MountPoints(string(p.Directory))
	}
	err = receiveArchive(c, func(in io.Reader) error { return layers.Unpack(c.Ctx, in, layer.Path(number), limits) })
	if released := finish(err == nil); released != nil {
		r.log.Printf("checkpoint: %v", released)
	}
	switch {
	case errors.As(err, new(*layers.FullError)):
		return nil, newFullError(err)
	case errors.Is(err, layers.ErrRefused):
		return nil, &wire.Error{Kind: "refused", Message: err.Error()}
	case errors.Is(err, layers.ErrTooLarge):
		return nil, &wire.Error{Kind: "too_large", Message: err.Error()}
	}
	return nil, err
}

// receiveArchive passes the input of a conversation to unpack, until unpack returns.
func receiveArchive(c *channel.Conversation, unpack func(in io.Reader) error) error {
	in, out := io.Pipe()
	result := make(chan error, 1)
	go func() {
		err := unpack(in)
		_ = in.CloseWithError(io.ErrClosedPipe) // the end marker or an error ends the input early
		result <- err
	}()
	complete, err := c.Receive(c.Ctx, func(piece []byte) error {
		_, err := out.Write(piece)
		return err
	})
	if err == nil && !complete {
		err = channel.ErrCanceled
	}
	if err != nil && !errors.Is(err, io.ErrClosedPipe) {
		_ = out.CloseWithError(err)
		<-result
		return err
	}
	_ = out.Close()
	return <-result
}

func checkpointPut(r *Runner, _ *channel.Conversation, params json.RawMessage) (any, error) {
	var p struct {
		Checkpoint string                    `json:"checkpoint"`
		Layers     []layerName               `json:"layers"`
		Limit      int64                     `json:"limit"`
		Workdir    ipc.Bytes                 `json:"workdir"`
		Sessions   map[string]sessions.State `json:"sessions"`
		Origin     *directories.Layout       `json:"origin"`
	}
	if err := channel.Decode(params, &p); err != nil {
		return nil, err
	}
	if p.Origin != nil {
		if len(p.Layers) != 1 {
			return nil, channel.BadRequest("a checkpoint of directories has one layer, not %d", len(p.Layers))
		}
		if err := p.Origin.Validate(); err != nil {
			return nil, channel.BadRequest("checkpoint.put: %v", err)
		}
	}
	if !slots.IsID(p.Checkpoint) || len(p.Layers) > layers.MaxStack || len(p.Workdir) == 0 || p.Workdir[0] != '/' {
		return nil, channel.BadRequest("checkpoint.put needs an id, an absolute workdir and at most %d layers",
			layers.MaxStack)
	}
	cp, isNew, err := r.checkpoints.begin(p.Checkpoint, "")
	if err != nil {
		return nil, err
	}
	if !isNew {
		<-cp.made
		return map[string]any{"layers": cp.result.Layers}, cp.err
	}
	if p.Origin != nil {
		cp.holds, cp.layout = directories.HoldsDirectories, *p.Origin
	}
	err = assemble(r, cp, p.Layers, p.Limit)
	if err == nil {
		if cp.sessions, err = r.sessions.Import(p.Sessions); err != nil {
			err = errors.Join(err, cp.stack.Release())
		}
	}
	cp.result = checkpointResult{Layers: cp.stack.IDs(), Sessions: cp.sessions.Places(), Workdir: p.Workdir}
	if problem := r.arrivals.drop(p.Checkpoint); err == nil && problem != nil {
		r.log.Printf("checkpoint: %v", problem)
	}
	r.checkpoints.finish(cp, err)
	return map[string]any{"layers": cp.result.Layers}, err
}

// layerName names a layer that has arrived for a checkpoint (Put), or one that the sandbox has.
type layerName struct {
	Put  string `json:"put"`
	Have string `json:"have"`
}

// assemble gives a checkpoint its layers, the oldest first. With them, all layers of the sandbox may
// have limit bytes; 0 for no limit.
func assemble(r *Runner, cp *checkpoint, names []layerName, limit int64) error {
	store, _, _, err := layerNames(r.slots, cp.holds)
	if err != nil {
		return err
	}
	for _, name := range names {
		var layer *layers.Layer
		if name.Put == "" {
			layer = store.Use(name.Have)
		} else if layer = r.arrivals.use(cp.id, name.Put); layer != nil {
			layer.Complete()
		}
		if layer == nil {
			return errors.Join(errNoCheckpoint, cp.stack.Release())
		}
		cp.stack = cp.stack.With(layer)
		if (layer.Owner != nil) != (cp.holds == directories.HoldsDirectories) {
			err := channel.BadRequest("a checkpoint of the root has no layers of directories, and the reverse")
			return errors.Join(err, cp.stack.Release())
		}
	}
	if err := store.CheckLimit(limit); err != nil {
		return errors.Join(newFullError(err), cp.stack.Release())
	}
	return nil
}
