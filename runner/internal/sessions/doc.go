// Package sessions keeps the shell sessions of slots.
//
// Each session runs one command at a time and takes the state that its shell writes (package
// session).
package sessions
