// Package plan holds the addresses of a lab: of both clusters, over IPv4 and over IPv6. Everything
// in the lab takes them from here.
package plan
