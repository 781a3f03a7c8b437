// Package program finds programs and working directories as a shell would, with the rights of the
// calling thread.
package program
