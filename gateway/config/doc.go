// Package config is the configuration of one gateway: the value, the YAML file that it is read
// from, and every check that needs no running gateway.
//
// A Config comes from Load, or a caller fills it in. Remap replaces each auto by the value that
// ipam chose; Check tells whether every layer of a gateway would accept the result. After that a
// Config never changes: a gateway compares the next one with it (ChangesLive) and keeps the links
// of nodes that stay (Links).
//
// Each error and warning begins with the path of its field in the file, such as
// geneve.nodes[1].vni, even if no file was read.
//
// Files: config.go has the values, file.go and file_nat.go read them, fields.go is their reference;
// validate.go, live.go and warn.go judge them; remap.go chooses values for auto; layers.go derives
// the configuration of each layer; mtu.go computes the overhead of encapsulation.
//
// There is no data plane here. A socket is opened only to ask the kernel for a route.
package config
