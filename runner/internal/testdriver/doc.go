// Package testdriver is for tests of other packages: it runs a serving runner in the test process,
// and a small driver that speaks the protocol with it.
package testdriver
