// Package detached starts runners that outlive the program that starts them, and finds and ends
// them later.
//
// Each runner has a directory with its base directory, its owner, its process id and its log, in
// the same layout as the sandboxes of the local backend.
package detached
