// Package slots keeps the slots of a sandbox: their directories, users, limits and agents, from
// creation over any number of resets to the end.
//
// Manager is the entry point. The processes of a slot are the business of its agent (package link).
package slots
