// Package probe has what hosts of a lab send each other to learn what a path does: echo requests,
// streams, datagrams, fragments, calls of services, forged packets and floods. A probe knows its
// two ends and how they see each other, and nothing of what is between them. A method named Check
// returns a measured figure, or an error with the expectation and the observation.
package probe
