// Package output keeps the output of commands: a bounded head and tail, the order in which two
// streams arrived, spill files with the whole stream, and logs that are read by absolute offset.
//
// Collector is for commands that are waited for, Log for long-lived processes. Memory is taken from
// a budget.Account.
package output
