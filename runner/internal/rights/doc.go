// Package rights changes the rights of threads on Linux: capabilities, users, groups and keyrings.
//
// Functions that begin with Thread change the calling thread only, which must be locked.
package rights
