// Package agent is the process of one slot. It starts, reaps and kills the slot's commands and
// works on the slot's files, with the slot's rights and in the slot's view.
//
// Main is the `runner agent` subcommand. The serving runner starts it (package link) and sends it
// requests over a socket (package ipc); the agent never talks to the driver.
package agent
