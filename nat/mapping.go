package nat

// portTries bounds the search for a free port (architecture.md, Section 2.1 no. 3).
const portTries = 128

// choosePort makes the reply tuple of a connection unique: it keeps the source port or ICMP identifier of to if it can, and else probes
// from a keyed hash of (node, source, destination), so that a packet in mid-stream gets the port that its connection had. It
// returns false if all tries fail, or if the packet has neither.
//
// The choice depends on address and port of the destination: RFC 4787, Section 4.1, REQ-1, is not met on purpose; one U serves 64,512
// connections to each remote address and port.
func (e *Engine) choosePort(p *Packet, from, to *tuple, zone Port, now Time) (answer tuple, ok bool) {
	answer = to.reply(zone)
	if _, taken := e.find(&answer, now); !taken {
		return answer, true
	}
	if !p.hasPorts && !p.hasIdent {
		return answer, false
	}
	low, n := portRange(to.sourcePort(), p.hasIdent)
	h := e.hashKey.sum(from.words[0], from.words[1], from.words[2], from.words[3], uint64(from.ports), uint64(from.zone)<<8|uint64(from.protocol))
	for range portTries {
		port := uint16(low + uint32(h>>32)%n)
		to.setSourcePort(port)
		if p.hasIdent {
			to.setDestinationPort(port)
		}
		answer = to.reply(zone)
		if _, taken := e.find(&answer, now); !taken {
			return answer, true
		}
		h = h*6364136223846793005 + 1442695040888963407 // anywhere else: ports in use cluster (Knuth's MMIX generator)
	}
	return answer, false
}

// portRange returns the ports that may stand for port: a privileged one is replaced by a privileged one, others by others (RFC 4787,
// Section 4.2, REQ-3 a). An identifier is any but 0.
func portRange(port uint16, identifier bool) (low, n uint32) {
	switch {
	case identifier:
		return 1, 0xffff
	case port < 1024:
		return 512, 512
	}
	return 1024, 0x10000 - 1024
}
