package nat_test

import (
	"fmt"
	"log"
	"net/netip"
	"time"

	"culvert/nat"
	"culvert/nat/nattest"
	"culvert/nat/packet"
	"culvert/nat/rules"
)

// Rome and Milan both use 10.0.0.0/16 for their pods, and see the other's as 10.61.0.0/16. A query
// leaves Rome, its answer comes back, and a node that uses another node's source is refused.
func ExampleEngine_Process() {
	pods, remapped := netip.MustParsePrefix("10.0.0.0/16"), netip.MustParsePrefix("10.61.0.0/16")
	address := func(s string) rules.Pair { return rules.PairOf(netip.MustParseAddr(s)) }
	engine, err := nat.New([16]byte{}, &nat.Config{MTU: 1340, Config: rules.Config{
		Nodes: []rules.Node{
			{Link: 1, Name: "rome-1", Address: address("10.80.0.2")},
			{Link: 2, Name: "rome-2", Address: address("10.80.0.3")},
		},
		LocalPodCIDRs: []netip.Prefix{pods},
		Remote:        []rules.RemoteCIDR{{Real: pods, Remapped: remapped}},
		Routes: []rules.Route{
			{Prefix: netip.MustParsePrefix("10.0.1.0/24"), Link: 1},
			{Prefix: netip.MustParsePrefix("10.0.2.0/24"), Link: 2},
		},
	}})
	if err != nil {
		log.Fatal(err)
	}
	for _, sent := range []struct {
		in                  nat.Link // nodes are numbered from 1
		source, destination string
	}{
		{1, "10.0.1.5", "10.61.2.7"},
		{nat.Tunnel, "10.0.2.7", "10.0.1.5"},
		{1, "10.0.2.5", "10.61.2.7"},
	} {
		var p packet.Packet
		p.Parse(nattest.IP{Source: sent.source, Destination: sent.destination, Body: nattest.UDP{}}.Bytes())
		verdict := engine.Process(&p, sent.in, nat.Time(time.Hour)) // the package has no clock
		if verdict.Action == nat.Drop {
			fmt.Println("drop", verdict.Reason)
			continue
		}
		var rewritten packet.Tuple
		p.Tuple(&rewritten, verdict.Out)
		fmt.Printf("%v to link %#x: %v > %v\n", verdict.Action, verdict.Out, rewritten.Source(),
			rewritten.Destination())
	}
	// Output:
	// forward to link 0xff00: 10.0.1.5 > 10.0.2.7
	// forward to link 0x1: 10.61.2.7 > 10.0.1.5
	// drop bad-source
}
