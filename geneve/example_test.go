package geneve_test

import (
	"fmt"
	"log"
	"net/netip"

	"culvert/geneve"
	"culvert/geneve/genevetest"
)

// A header is read from the start of a datagram. What is malformed has a Reason.
func ExampleParseHeader() {
	header := geneve.Header{VNI: 300, Protocol: 0x6558}
	datagram, err := header.AppendTo(nil)
	if err != nil {
		log.Fatal(err)
	}
	datagram = append(datagram, "an Ethernet frame"...)

	fmt.Printf("% x\n", datagram[:8])
	read, payload, reason := geneve.ParseHeader(datagram)
	fmt.Printf("VNI %d, protocol %#x, %q: %v\n", read.VNI, read.Protocol, payload, reason)
	_, _, reason = geneve.ParseHeader(datagram[:5])
	fmt.Println(reason)
	// Output:
	// 00 00 65 58 00 01 2c 00
	// VNI 300, protocol 0x6558, "an Ethernet frame": accepted
	// truncated
}

// A gateway and a node, here on one machine, exchange IP packets. The tunnel carries IP
// directly, so neither end has to find the other's MAC address.
func ExampleEndpoint() {
	gateway, err := geneve.Listen(geneve.Options{Listen: netip.MustParseAddrPort("127.0.0.1:0")})
	if err != nil {
		log.Fatal(err)
	}
	defer gateway.Close()
	port := gateway.LocalAddr().Port() // real ends share one port number
	node, err := geneve.Listen(geneve.Options{Listen: netip.AddrPortFrom(netip.MustParseAddr("127.0.0.2"), port)})
	if err != nil {
		log.Fatal(err)
	}
	defer node.Close()

	tunnel := geneve.Tunnel{ID: 1, VNI: 300, Inner: geneve.IP}
	tunnel.Remote, tunnel.Role = node.LocalAddr().Addr(), geneve.Gateway
	if err := gateway.Apply([]geneve.Tunnel{tunnel}); err != nil {
		log.Fatal(err)
	}
	tunnel.Remote, tunnel.Role = gateway.LocalAddr().Addr(), geneve.Node
	if err := node.Apply([]geneve.Tunnel{tunnel}); err != nil {
		log.Fatal(err)
	}

	sender := node.NewSender()
	from, to := netip.MustParseAddrPort("10.0.1.5:40000"), netip.MustParseAddrPort("10.61.2.7:53")
	sender.Send(1, genevetest.UDP(from, to, []byte("query")))
	sender.Flush()

	receiver := gateway.NewReceiver()
	if err := receiver.Fill(); err != nil { // blocks until something has arrived
		log.Fatal(err)
	}
	for p, ok := receiver.Next(); ok; p, ok = receiver.Next() {
		fmt.Printf("tunnel %d: %d bytes, %q\n", p.Tunnel, len(p.Data), p.Data[28:])
	}
	// Output:
	// tunnel 1: 33 bytes, "query"
}
