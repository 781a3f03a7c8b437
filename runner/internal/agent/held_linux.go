package agent

import (
	"maps"
	"slices"

	"hermes-exec/runner/internal/room"
)

// held is what the removed files take that the slot's processes have open.
func (k *killer) held() (use room.Use) {
	k.killers.do(func() {
		if all, err := k.snapshot(); err == nil {
			use = room.Held(slices.Collect(maps.Keys(k.tenants(all))))
		}
	})
	return use
}
