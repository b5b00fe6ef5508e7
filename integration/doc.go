// Package integration holds the tests that join everything: labs in network
// namespaces, third-party peers, and the rules of the tree itself.
package integration
