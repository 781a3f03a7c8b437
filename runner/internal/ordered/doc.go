// Package ordered carries out the requests on one thing one after the other, and never an older one after
// a newer one.
package ordered
