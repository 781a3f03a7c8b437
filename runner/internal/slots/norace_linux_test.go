//go:build !race

package slots

const raced = false
