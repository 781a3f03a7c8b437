// Package initproc prepares a process of this program to live next to hostile neighbours: the
// process is undumpable, handles signals, has its threads before a full pids limit can refuse them,
// and reaps orphans.
//
// The serving runner and each agent call Init at their start.
package initproc
