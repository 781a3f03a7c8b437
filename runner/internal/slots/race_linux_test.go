//go:build race

package slots

// raced: programs built with the race detector take a second to end.
const raced = true
