package layers

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
)

// mergedCount is how many layers a merge replaces by one.
const mergedCount = MaxStack / 2

// entryCost is what an entry costs in a merge besides its data, in bytes.
const entryCost = 16 << 10

// Merge returns a stack with the same effect and fewer layers, with a use of each: a copy of the
// mergedCount neighbours with the least data takes their place. The other layers get one more use, and the
// stack itself stays as it is.
func (s Stack) Merge(ctx context.Context) (Stack, error) {
	at, err := s.cheapest(mergedCount)
	if err != nil {
		return nil, err
	}
	merged, err := s[at : at+mergedCount].merge(ctx)
	if err != nil {
		return nil, fmt.Errorf("layers could not be merged: %w", err)
	}
	stack := slices.Concat(s[:at], s[at+mergedCount:]).Use()
	return slices.Insert(stack, at, merged), nil
}

// cheapest returns where the count neighbours with the least data begin.
func (s Stack) cheapest(count int) (at int, err error) {
	costs := make([]int64, len(s))
	for i, l := range s {
		size, err := l.Size()
		if err != nil {
			return 0, err
		}
		costs[i] = size.Bytes + int64(size.Entries)*entryCost
	}
	least := int64(math.MaxInt64)
	for i := 0; i+count <= len(s); i++ {
		var cost int64
		for _, each := range costs[i : i+count] {
			cost += each
		}
		if cost < least {
			at, least = i, cost
		}
	}
	return at, nil
}

// merge makes one layer with the effect of all layers of the stack.
func (s Stack) merge(ctx context.Context) (*Layer, error) {
	uppers := map[int][]string{}
	for _, l := range s {
		for _, n := range l.parts {
			uppers[n] = append(uppers[n], l.Path(n))
		}
	}
	merged, err := s[0].store.Add()
	if err != nil {
		return nil, err
	}
	for n, each := range uppers {
		if err := mergeUppers(ctx, each, merged.Path(n)); err != nil {
			return nil, errors.Join(err, Stack{merged}.Release())
		}
		merged.AddPart(n)
	}
	merged.Complete()
	return merged, nil
}
