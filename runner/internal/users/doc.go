// Package users gives slots user ids of their own, and gives those ids names in the sandbox's
// passwd and group.
package users
