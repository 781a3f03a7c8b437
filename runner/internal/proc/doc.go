// Package proc reads processes and mounts from /proc.
//
// Tenants can shape nearly all of this: callers must not trust names, arguments or environments.
package proc
