// Package rootfs makes the file system that a slot sees: a private root, the sandbox's root with
// the directories of others covered, or the image with a layer of the slot's own over it.
//
// View.Enter changes the calling process, which must have been started in namespaces of its own
// (package isolation).
package rootfs
