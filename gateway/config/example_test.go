package config_test

import (
	"errors"
	"fmt"
	"log"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"culvert/gateway/config"
	"culvert/gateway/wgkey"
	"culvert/ipam"
)

// file is the smallest configuration of a gateway with one node.
const file = `
cluster: rome
peer: milan
wireguard: {role: server, privateKeyFile: rome.key, peerPublicKeyFile: milan.pub}
geneve:
  gatewayAddress: 10.80.0.4
  nodes: [{name: rome-1, vni: 11, underlay: 127.0.0.2, address: 10.80.0.2, podCIDRs: [10.0.1.0/24]}]
network:
  local:  {podCIDRs: [10.0.0.0/16], externalCIDRs: [10.70.0.0/16]}
  remote: {podCIDRs: [{cidr: 10.0.0.0/16, remap: auto}]}
state: state
`

// load writes a configuration file and the two keys that it names, and loads it.
func load(text string) (*config.Config, error) {
	dir, err := os.MkdirTemp("", "config")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	path := filepath.Join(dir, "gateway.yaml")
	private := wgkey.NewPrivate()
	err = errors.Join(
		os.WriteFile(path, []byte(text), 0o600),
		os.WriteFile(filepath.Join(dir, "rome.key"), private[:], 0o600),
		os.WriteFile(filepath.Join(dir, "milan.pub"), []byte(wgkey.NewPrivate().Public().Base64()), 0o600))
	if err != nil {
		return nil, err
	}
	return config.Load(path)
}

// A file is loaded, and ipam chooses what the file leaves open. The result never changes.
func ExampleLoad() {
	c, err := load(file)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(c.Cluster, "to", c.Peer, "as", c.WireGuard.Role, "on port", c.WireGuard.ListenPort)

	// Remap stores its choices; Preview does not. Here it does not look at this machine's networks.
	taken := slices.DeleteFunc(c.Taken(), func(t ipam.Taken) bool { return t.Connected })
	remapped, err := c.Preview(new(ipam.Ledger), taken, time.Unix(0, 0))
	if err != nil {
		log.Fatal(err)
	}
	for _, choice := range remapped.Choices {
		fmt.Println(choice.Path, "is", choice.RemappedText())
	}
	links := config.Links{}.Assign(remapped.Config.Geneve.Nodes)
	fmt.Println("routes:", remapped.Config.NAT(links, 1000).Routes)
	fmt.Println("faults:", config.Check(remapped.Config))
	// Output:
	// rome to milan as server on port 51840
	// network.remote.podCIDRs[0].remap is 10.1.0.0/16
	// routes: [{10.80.0.2/32 1} {10.0.1.0/24 1}]
	// faults: <nil>
}

// All faults of a file are reported at once, each with its line, column and field.
func ExampleLoad_faults() {
	wrong := strings.NewReplacer("vni: 11", "vni: 16777216", "10.80.0.4", "10.80.0.2", "milan\n", "rome\n")
	_, err := load(wrong.Replace(file))
	for line := range strings.Lines(err.Error()) {
		_, fault, _ := strings.Cut(line, "gateway.yaml:") // behind the folder
		fmt.Print(fault)
	}
	// Output:
	// 7:31: geneve.nodes[0].vni: "16777216" is not a number from 0 to 16777215
	// 3:7: peer: "rome" is this cluster's own ID
	// 7:71: geneve.nodes[0].address: 10.80.0.2 is geneve.gatewayAddress too; give each its own
}
