// Package objects has the one view of the API server's objects that all of culvert shares: their
// resources, and what is read from each kind.
package objects
