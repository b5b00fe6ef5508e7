// Package bench measures the path between two pods of a lab through culvert's gateways, and
// compares it with the path through reference gateways in the same namespaces.
package bench
