// Package config is what one gateway is to do: a value, the YAML file that it is read
// from, and everything that can be said of it without running it.
//
// A Config comes from Load, or from whoever fills one in. Remap replaces what it leaves
// to ipam (auto) by what was chosen; Check says whether every layer of a gateway would
// take the result. A Config is not changed after that: a gateway compares the next one
// with it (ChangesLive) and keeps the links of nodes that stay (Links).
//
// Each error and warning begins with the path of its field in the file, such as
// geneve.nodes[1].vni, also where no file was read.
//
// Files: config.go has the values, file.go and file_nat.go read them, fields.go is their
// reference; validate.go, live.go and warn.go judge them; remap.go chooses what is auto;
// layers.go says to each layer what is its part; mtu.go knows what encapsulation adds.
//
// There is no data plane here: no socket is opened, except to ask the kernel for a route.
package config
