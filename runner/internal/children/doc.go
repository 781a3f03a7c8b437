// Package children keeps the commands that an agent has started.
//
// Table pairs them with the statuses that the reaper collects, and reports how each command ended.
// Processes that a command started itself are found by package tenants.
package children
