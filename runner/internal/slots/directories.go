package slots

import (
	"context"
	"errors"
	"os"

	"hermes-exec/runner/internal/directories"
	"hermes-exec/runner/internal/ipc"
	"hermes-exec/runner/internal/layers"
)

// Directories returns the directories that a checkpoint holds, as its slot sees them, and the runner's
// directory with them; nothing if it holds the root. Where slots have no mount namespaces, their paths
// begin with dir.
func (l *SlotLayers) Directories() (paths []ipc.Bytes, dir string) {
	if l.holds == directories.HoldsRoot {
		return nil, ""
	}
	d := directoriesOf(l.s)
	return d.Paths(), d.Dir
}

func directoriesOf(s *slot) *directories.Directories {
	owner := layers.Owner{UID: os.Geteuid(), GID: os.Getegid()}
	if uid, gid, ok := s.owner(); ok {
		owner = layers.Owner{UID: uid, GID: gid}
	}
	return directories.Of(s.dir, &s.setup, owner)
}

// setDirectories copies a layer into the slot's new directories. If there is no room, it waits for the
// removal of the last tenant's files. After an error the directories are empty. mu must be held.
func setDirectories(ctx context.Context, s *slot, layer *layers.Layer) error {
	err := directoriesOf(s).Fill(ctx, layer)
	if ipc.IsShortage(err) {
		if err = renewDirs(s); err == nil {
			s.m.trash.Settle(s.waste)
			err = directoriesOf(s).Fill(ctx, layer)
		}
	}
	if err != nil {
		return errors.Join(err, renewDirs(s))
	}
	s.monitor.SurveyAgain()
	return nil
}

// renewDirs replaces the slot's directories by empty ones.
func renewDirs(s *slot) error {
	var problems []error
	for _, problem := range s.discardDirs() {
		problems = append(problems, errors.New(problem))
	}
	return errors.Join(append(problems, s.remakeDirs())...)
}
