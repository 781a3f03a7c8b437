// Package node describes files of a file system: type, mode, owner, identity and names.
package node
