// Package state saves what a gateway leaves for its successor: a folder for each peering, below one
// that the gateways of a cluster may share.
//
//	FOLDER/PEER/lock         held by the running gateway; its text is the process's ID
//	FOLDER/PEER/identity     the key of port choice and where the peer was last, written as soon
//	                         as one of them changes
//	FOLDER/PEER/connections  what package nat remembers of connections, written now and then and
//	                         at the end
//	FOLDER/PEER/services     what Kubernetes has said last that a node serves, within seconds of
//	                         each change
//
// The folder has mode 0700 and the files mode 0600: the key of port choice is a secret. A file is
// replaced as a whole, and is durable when its function returns. Files that another user could have
// written are not read. Their content is not trusted: it may be damaged, of another version, or of
// another gateway.
package state
