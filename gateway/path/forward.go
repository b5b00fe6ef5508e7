package path

import (
	"culvert/geneve"
	"culvert/nat"
	"culvert/nat/packet"
)

// forward writes p, cut to size, directly behind its new headers, for the node v.Out.
func forward(to *geneve.Sender, cutter *packet.Cutter, p *packet.Packet, v nat.Verdict, seen *sight) {
	size := p.Len() + p.LeadLen()
	if v.MTU > 0 {
		size = min(size, v.MTU)
	} else if v.SegmentSize > 0 {
		size = min(size, p.HeaderLen()+p.TCPHeaderLen()+v.SegmentSize)
	}
	cutter.Start(p, v.SegmentSize, v.MTU)
	for i := range v.Packets {
		room, reason := to.Reserve(uint16(v.Out), size)
		if reason != geneve.Accepted { // counted by the sender, packet by packet
			if i == 0 {
				seen.lost(reason.String(), p.Bytes())
			}
			continue
		}
		to.Commit(cutter.Next(room))
	}
}
