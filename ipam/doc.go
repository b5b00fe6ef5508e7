// Package ipam will choose remapped CIDRs for "remap: auto". The configuration
// refuses that word as long as this package is empty.
package ipam
