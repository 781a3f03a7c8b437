// Package environ makes the environments of slots.
package environ
