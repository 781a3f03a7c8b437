// Package threads starts threads that are prepared alike: with credentials, Landlock rules, cgroups
// and other settings that the kernel keeps for each thread.
package threads
