// Package private keeps a directory that nobody else may change.
//
// It checks the path to the directory as OpenSSH checks the path to its keys (StrictModes), and
// holds the directory open, so that a replacement is noticed.
package private
