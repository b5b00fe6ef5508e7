// Package state is what a gateway leaves for the one that comes after it: a folder for each peering, below one that the gateways of a
// cluster may share.
//
//	FOLDER/PEER/lock         held by the gateway that runs; its text is the process's ID
//	FOLDER/PEER/identity     the key of port choice and where the peer was last, written as soon as one of them changes
//	FOLDER/PEER/connections  what package nat remembers of connections, written now and then and at the end
//
// The folder is of mode 0700 and the files are of mode 0600: the key of port choice is a secret. A file is replaced as a whole, and what
// is written is durable when its function returns. What is read may be anything: of other versions, of another gateway, damaged.
package state
