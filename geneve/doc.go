// Package geneve is the tunnel between a gateway and its nodes.
package geneve
