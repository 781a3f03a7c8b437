// Package views sends the output of a slot's commands to viewers.
//
// Commands never wait for a viewer: a viewer that is too slow loses output.
package views
