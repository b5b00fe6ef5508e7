// Package setup plans two clusters that are joined by files, and writes the files: keys, the
// configuration of gateways and nodes, and how to start. A Plan asks what only its user knows,
// checks each answer, and chooses the rest: remaps, external CIDRs, internal addresses, and ports
// beside those of other peerings.
package setup
