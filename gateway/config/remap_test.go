package config

import (
	"context"
	"errors"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"culvert/integration/need"
	"culvert/ipam"
	"culvert/nat/rules"
)

// autoConfig is goodFile with an ipam file and one "auto" of each kind.
func autoConfig(t *testing.T) *Config {
	t.Helper()
	text := strings.NewReplacer("remap: 10.61.0.0/16", "remap: auto", "external: 10.70.0.9", "external: auto",
		"address: 10.70.0.20", "address: auto",
		"mssClamp: 1200", "state: state\nipam: {reserved: [10.96.0.0/16]}").Replace(goodFile)
	c, err := parseText([]byte(text), keyFolder(t))
	need.NoError(t, err)
	return c
}

// TestTaken: every address that a configuration uses is listed under its path in the file.
func TestTaken(t *testing.T) {
	c := autoConfig(t)
	c.Addresses = append(c.Addresses, AddressMapping{External: rules.PairOf(netip.MustParseAddr("10.70.0.5")),
		Internal: rules.PairOf(netip.MustParseAddr("192.0.2.11"))})
	c.UnknownSource.V4 = netip.MustParseAddr("10.70.0.7")
	var got []string
	for _, taken := range c.Taken() {
		if !taken.Connected {
			got = append(got, taken.Name+" "+taken.Prefix.String())
		}
	}
	want := []string{
		"the tunnel addresses 169.254.18.0/24",
		`the addresses of "this network" 0.0.0.0/8`, "the loopback addresses 127.0.0.0/8",
		"the multicast and reserved addresses 224.0.0.0/3",
		"the link-local addresses, of which the tunnel has some fe80::/10", "the multicast addresses ff00::/8",
		"network.local.podCIDRs[0] 10.0.0.0/16", "network.local.externalCIDRs[0] 10.70.0.0/16",
		"ipam.reserved[0] 10.96.0.0/16", "network.remote.podCIDRs[1] 10.200.0.0/20",
		"network.remote.externalCIDRs[0] 10.71.0.0/16",
		"geneve.gatewayAddress 10.80.0.4/32",
		"geneve.nodes[0].address 10.80.0.2/32", "geneve.nodes[0].underlay 172.18.0.2/32",
		"geneve.nodes[1].address 10.80.0.3/32", "geneve.nodes[1].underlay 172.18.0.3/32",
		"wireguard.endpoint 192.0.2.7/32", "nat.unknownSource 10.70.0.7/32", "nat.addresses[1].external 10.70.0.5/32",
	}
	if !slices.Equal(got, want) {
		t.Errorf("got  %q\nwant %q", got, want)
	}
}

// TestServiceOfBothFamilies: a service gets an address of each family, which no other service can
// get by its name.
func TestServiceOfBothFamilies(t *testing.T) {
	c := autoConfig(t)
	c.Local.ExternalCIDRs = append(c.Local.ExternalCIDRs, netip.MustParsePrefix("fd00:70::/64"))
	backend := func(a string) Backend { return Backend{Address: netip.MustParseAddr(a), Port: 80} }
	c.Services = []Service{
		{Name: "web.ipv6", Backends: []Backend{backend("10.0.1.5")}},
		{Name: "web", Backends: []Backend{backend("10.0.1.5"), backend("fd00::5")}},
	}
	r, err := c.Preview(new(ipam.Ledger), nil, time.Unix(0, 0))
	need.NoError(t, err)
	other, web := r.Config.Services[0].Address, r.Config.Services[1].Address
	if !other.V4.IsValid() || other.V6.IsValid() || !web.V4.IsValid() || !web.V6.IsValid() || web.V4 == other.V4 {
		t.Errorf("web.ipv6 has %s, web has %s", other, web)
	}
}

// TestConnectedNetworks: new choices avoid the networks of this machine; an earlier choice inside
// one only causes a warning.
func TestConnectedNetworks(t *testing.T) {
	connected := ipam.Taken{Name: "the network of eth1", Prefix: netip.MustParsePrefix("10.1.7.0/24"), Connected: true}
	choose := func(l *ipam.Ledger, taken ...ipam.Taken) *Remapped {
		t.Helper()
		c := autoConfig(t)
		c.Warnings = nil // those of the file on this machine
		r, err := c.Preview(l, append(slices.DeleteFunc(c.Taken(), func(t ipam.Taken) bool { return t.Connected }),
			taken...), time.Unix(0, 0))
		need.NoError(t, err)
		return r
	}
	before := new(ipam.Ledger)
	first := choose(before).Choices[0]
	if first.RemappedText() != "10.1.0.0/16" || !first.New {
		t.Fatalf("chosen %+v", first)
	}
	later := choose(before, connected)
	if got := later.Choices[0]; got.Remapped != first.Remapped || got.New {
		t.Errorf("then %+v", got)
	}
	if len(later.Warnings) != 1 || !strings.Contains(later.Warnings[0],
		"the network of eth1 (10.1.7.0/24) overlaps 10.1.0.0/16, the remap of milan pod 10.0.0.0/16, which stays") {
		t.Errorf("warnings %q", later.Warnings)
	}
	if got := choose(new(ipam.Ledger), connected).Choices[0]; got.Remapped.Overlaps(connected.Prefix) {
		t.Errorf("chosen anew %+v", got)
	}
}

// TestRemapRefused: a refused choice is not written. An accepted one is in the configuration, which
// was not valid before and is now.
func TestRemapRefused(t *testing.T) {
	c := autoConfig(t)
	if err := c.Validate(); err == nil || !strings.Contains(err.Error(),
		"network.remote.podCIDRs[0].remap: auto, and nothing was chosen") {
		t.Errorf("before: %v", err)
	}
	refused := errors.New("refused")
	_, err := Remap(context.Background(), c, time.Unix(0, 0), false, func(*Config) error { return refused })
	if left, _ := filepath.Glob(filepath.Join(c.State, "*")); !errors.Is(err, refused) || len(left) > 0 {
		t.Errorf("refused: %v, files %q", err, left)
	}
	r, err := Remap(context.Background(), c, time.Unix(0, 0), false, (*Config).Validate)
	need.NoError(t, err)
	if len(c.automatics()) != 3 || len(r.Config.automatics()) != 0 {
		t.Errorf("%d auto before, %d after", len(c.automatics()), len(r.Config.automatics()))
	}
}
