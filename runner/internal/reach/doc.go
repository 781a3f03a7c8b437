// Package reach opens paths for tenants.
//
// It refuses files of /proc that belong to the runner's own processes, and it follows no link of
// /proc to a file that a process has open.
package reach
