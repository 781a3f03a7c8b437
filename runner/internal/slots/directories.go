package slots

import (
	"context"
	"errors"

	"hermes-exec/runner/internal/directories"
	"hermes-exec/runner/internal/ipc"
	"hermes-exec/runner/internal/layers"
)

// Directories returns the directories that a checkpoint holds; nil if it holds the root.
func (l *SlotLayers) Directories() *directories.Directories {
	if l.holds == directories.HoldsRoot {
		return nil
	}
	return directoriesOf(l.s)
}

func directoriesOf(s *slot) *directories.Directories {
	owner := layers.RunnerOwner()
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
