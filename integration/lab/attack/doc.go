// Package attack has the checks in which one party of a lab attacks another: an attacker and a
// well-behaved party, the innocent, which is another node or pod, or another client of the same
// service; lab.Attacks describes such a lab. Attackers forge packets with raw sockets, 25,000 a
// second, with wrong transport checksums: receivers stay silent, so that only the gateways are
// attacked. Each request of the innocent must be answered. The kernel's receive buffers cannot be
// divided into shares, so a request may be repeated, but not more often than the kernel has counted
// losses. Each check starts its own gateways, with the memory limit that they would choose in a
// control group of 64 MiB.
package attack
