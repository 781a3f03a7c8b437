// Package wipe removes the directory trees that tenants leave.
//
// Wiper removes a tree at once; Trash moves a tree out of the tenant's reach and removes it in the
// background.
package wipe
