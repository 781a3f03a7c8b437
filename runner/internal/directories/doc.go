// Package directories copies the directories of slots without roots of their own to layers and back.
//
// Tenants shape the directories, and the runner copies with its own rights: see package layers.
package directories
