package packet_test

import (
	"fmt"
	"net/netip"

	"culvert/nat/nattest"
	"culvert/nat/packet"
)

// A packet gets another destination. Its checksums change by the difference, so the payload is not
// read.
func ExamplePacket_Rewrite() {
	query := nattest.IP{Source: "10.0.1.5", Destination: "10.61.2.7",
		Body: nattest.UDP{SourcePort: 40000, DestinationPort: 53, Payload: []byte("query")}}.Bytes()

	var p packet.Packet
	if fault := p.Parse(query); fault != packet.NoFault { // any bytes are allowed here, and nowhere below
		fmt.Println("refused:", fault)
		return
	}
	var from packet.Tuple
	p.Tuple(&from, 1) // it arrived at link 1
	to := from
	to.SetDestination(netip.MustParseAddr("10.0.2.7"))
	addresses, ports := packet.Deltas(&from, &to)
	p.Rewrite(&to, addresses, ports)
	p.DecrementHops()

	_, err := nattest.Check(query) // the Packet is a view of these bytes
	fmt.Println(&from, "became", &to)
	fmt.Println("hop limit", p.Hops(), "wrong checksum:", err)
	// Output:
	// 17 10.0.1.5:40000>10.61.2.7:53@1 became 17 10.0.1.5:40000>10.0.2.7:53@1
	// hop limit 63 wrong checksum: <nil>
}

// A TCP super-frame is cut into the segments that fit the wire.
func ExampleCutter() {
	frame := nattest.IP{Source: "10.0.1.5", Destination: "10.0.2.7", DF: true, Body: nattest.TCP{SourcePort: 40000,
		DestinationPort: 80, Seq: 1000, Flags: packet.ACK, Payload: make([]byte, 3000), Partial: true}}.Bytes()
	var p packet.Packet
	p.Parse(frame)

	var cutter packet.Cutter
	wire := make([]byte, 1340)
	cutter.Start(&p, 1300, 0)
	for n := cutter.Next(wire); n > 0; n = cutter.Next(wire) {
		var segment packet.Packet
		segment.Parse(wire[:n])
		var header packet.Segment
		segment.Segment(&header)
		fmt.Println(n, "bytes, sequence number", header.Seq, "checksum is right:", segment.IsSumRight())
	}
	// Output:
	// 1340 bytes, sequence number 1000 checksum is right: true
	// 1340 bytes, sequence number 2300 checksum is right: true
	// 440 bytes, sequence number 3600 checksum is right: true
}
