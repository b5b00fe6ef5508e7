package sim

import (
	"fmt"
	"io"
	"strings"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
	"github.com/gopacket/gopacket/pcapgo"

	"culvert/nat/nattest"
)

// nodeHeader is what comes before the frame in a datagram of a node, by Geneve or VXLAN.
const nodeHeader = 8

// frame is the inner frame of a record, or nil between the gateways.
func (x *record) frame() []byte {
	if x.leg.latency == wanLatency || len(x.data) < nodeHeader+podEther {
		return nil
	}
	return x.data[nodeHeader:]
}

// String says what the datagram is.
func (x *record) String() string {
	frame := x.frame()
	switch {
	case frame == nil && len(x.data) > 0:
		return fmt.Sprintf("WireGuard %s, %d bytes", []string{"?", "initiation", "response", "cookie",
			"data"}[min(x.data[0], 4)], len(x.data))
	case frame == nil || packetOf(x.data) == nil:
		return "ARP"
	}
	v, err := nattest.Check(frame[podEther:])
	if err != nil {
		return err.Error()
	}
	text := fmt.Sprintf("%v.%d to %v.%d", v.Source, v.SourcePort, v.Destination, v.DestinationPort)
	if v.Offset > 0 || v.MF {
		return fmt.Sprintf("fragment at %d of %v to %v, protocol %d, %d bytes", v.Offset, v.Source, v.Destination,
			v.Protocol, len(v.Body))
	}
	switch v.Protocol {
	case icmp, icmp6:
		return fmt.Sprintf("ICMP %d/%d %v to %v", v.Body[0], v.Body[1], v.Source, v.Destination)
	case 6:
		flags := ""
		for i, f := range "FSRPA" {
			if v.Flags&(1<<i) != 0 {
				flags += string(f)
			}
		}
		return fmt.Sprintf("TCP %s %s seq %d/%d ack %d, %d bytes", text, flags, v.Seq>>16, v.Seq&0xffff, v.Ack&0xffff,
			len(v.Payload))
	}
	return fmt.Sprintf("protocol %d %s, %d bytes", v.Protocol, text, len(v.Payload))
}

// diagram writes the last records as a sequence diagram, in the language of Mermaid.
func (w *world) diagram(to io.Writer, last int) {
	all := w.records()
	fmt.Fprintln(to, "sequenceDiagram")
	for _, name := range []string{"rome-1", "rome-2", "rome", "milan", "milan-1", "milan-2"} {
		fmt.Fprintf(to, "  participant %s\n", name)
	}
	for _, x := range all[max(0, len(all)-last):] {
		if x.leg == nil {
			fmt.Fprintf(to, "  Note over rome,milan: %v %s\n", x.at, x.fate)
			continue
		}
		arrow, text := "->>", x.String()
		if strings.HasPrefix(x.fate, "lost") {
			arrow = "-x"
		}
		if x.fate != "" {
			text += " (" + x.fate + ")"
		}
		fmt.Fprintf(to, "  %s%s%s: %v %s\n", x.leg.name[0], arrow, x.leg.name[1], x.at, text)
	}
}

// capture writes the records as pcapng: the inner frames of each node, and what is between the
// gateways.
func (w *world) capture(to io.Writer) error {
	link := func(l *leg) pcapgo.NgInterface {
		i := pcapgo.NgInterface{Name: l.name[0] + " to " + l.name[1], LinkType: layers.LinkTypeEthernet}
		if l.latency == wanLatency {
			i.LinkType = layers.LinkTypeRaw
		}
		return i
	}
	number := make(map[*leg]int)
	file, err := pcapgo.NewNgWriterInterface(to, link(w.legs[0]), pcapgo.DefaultNgWriterOptions)
	if err != nil {
		return err
	}
	for i, l := range w.legs {
		if number[l] = i; i > 0 {
			if _, err := file.AddInterface(link(l)); err != nil {
				return err
			}
		}
	}
	for _, x := range w.records() {
		if x.leg == nil {
			continue
		}
		data := x.frame()
		if data == nil {
			data = nattest.IP{Source: x.from.Addr().String(), Destination: x.to.Addr().String(),
				Body: nattest.UDP{SourcePort: x.from.Port(), DestinationPort: x.to.Port(), Payload: x.data}}.Bytes()
		}
		info := gopacket.CaptureInfo{Timestamp: w.start.Add(x.at), CaptureLength: len(data), Length: len(data),
			InterfaceIndex: number[x.leg]}
		if err := file.WritePacket(info, data); err != nil {
			return err
		}
	}
	return file.Flush()
}

// happened lists the events.
func (w *world) happened() (text string) {
	for _, x := range w.records() {
		if x.leg == nil {
			text += fmt.Sprintf("%v %s\n", x.at, x.fate)
		}
	}
	return text
}
