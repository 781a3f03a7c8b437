// Package shared removes what slots leave in parts of the sandbox that they share with others:
// files, by their owners, keys and System V objects.
//
// A Cleaner belongs to one sandbox. On other systems than Linux it removes nothing, because slots
// have no users of their own there.
package shared
