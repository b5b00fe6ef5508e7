// Package netns has the hosts of a lab, which are network namespaces: what runs inside, the links
// between them, and sockets there. It also tells what a machine lacks for them.
package netns
