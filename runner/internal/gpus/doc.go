// Package gpus finds the GPUs of a host with their device nodes, and selects those of a slot.
package gpus
