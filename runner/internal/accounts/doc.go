// Package accounts reads and writes entries of passwd and group.
//
// LookupUser resolves a user name of the sandbox; PasswdFile and GroupFile return files for a slot.
// The package changes no files itself: package users does.
package accounts
