// Package tenants finds the processes of a slot among all processes that /proc shows, attributes
// them to commands, and kills them with a receipt.
package tenants
