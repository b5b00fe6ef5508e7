package integration

import (
	"encoding/binary"
	"net/netip"
	"slices"

	"culvert/nat"
	"culvert/nat/nattest"
	"culvert/nat/rules"
)

// An end is one side of a flow, with the addresses that this side uses.
type end struct {
	link         nat.Link // where the side's packets enter
	src, dst     netip.Addr
	sport, dport uint16
	last         []byte // the last packet that came out at this side, which ICMP errors quote
	open         bool   // the side has received a packet, and can answer
}

// A flow is a conversation through the gateway. Its second end is learned from what the engine
// makes of the first end's packets.
type flow struct {
	v6       bool
	protocol uint8
	ends     [2]end
	step     int
	answered bool // a packet of the second end has come through
	told     bool // an ICMP error, or a message of the kernel, was about it
	seq      [2]uint32
	script   []flowStep
}

// A flowStep is one packet of a flow's script.
type flowStep struct {
	from    int // which end sends it
	flags   uint8
	size    int
	icmpErr bool // an ICMP error about the last packet that came out at this end
}

const (
	protoICMP   = 1
	protoTCP    = 6
	protoUDP    = 17
	protoICMPv6 = 58
	protoOther  = 253 // RFC 3692: for experiments
)

// newFlow makes a flow whose source port no other flow of this rule set has: at a clash, the kernel
// and the engine choose different ports.
func (m *maker) newFlow(number int) *flow {
	f := &flow{v6: m.v6()}
	f.protocol = pick(m, uint8(protoTCP), protoTCP, protoUDP, protoUDP, protoICMP, protoOther)
	if f.v6 && f.protocol == protoICMP {
		f.protocol = protoICMPv6
	}
	e := &f.ends[0]
	e.open = true
	if m.IntN(2) == 0 {
		e.link = nat.Tunnel
		e.src, e.dst = m.from(m.plan.tunnelSources, f.v6), m.from(m.plan.tunnelDestinations, f.v6)
	} else {
		e.link = pick(m, m.plan.nodes...)
		e.src, e.dst = m.from(m.plan.nodeSources, f.v6), m.from(m.plan.nodeDestinations, f.v6)
	}
	e.sport, e.dport = uint16(1024+number), pick(m, uint16(80), 443, 53, 8080)
	if f.protocol == protoOther { // without ports, two flows cannot be told apart
		e.src, e.dst = spread(e.src, number), spread(e.dst, number)
		if e.src == e.dst { // nor can a packet and its answer
			e.dst = spread(e.dst, number+1024)
		}
	}
	if isICMPQuery(f.protocol) {
		e.dport = e.sport
	}
	f.script = m.script(f.protocol)
	for i := range f.script {
		if m.fixture && m.IntN(20) > 0 {
			f.script[i].size = min(f.script[i].size, 1+m.IntN(40))
		}
	}
	f.seq = [2]uint32{m.Uint32(), m.Uint32()}
	return f
}

// from returns an address of one of the prefixes.
func (m *maker) from(of []netip.Prefix, v6 bool) netip.Addr {
	for {
		if p := pick(m, of...); p.Addr().Is6() == v6 {
			return m.in(p)
		}
	}
}

func isICMPQuery(p uint8) bool { return p == protoICMP || p == protoICMPv6 }

// spread puts number into the low bits of an address, far from those that maker.in mostly uses.
func spread(a netip.Addr, number int) netip.Addr {
	b := a.AsSlice()
	n := len(b)
	b[n-1] = byte(number)
	b[n-2] = b[n-2]&0xc0 | byte(number>>8)&0x3f | 0x20
	r, _ := netip.AddrFromSlice(b)
	return r
}

// script returns the packets of a flow of a protocol.
func (m *maker) script(protocol uint8) []flowStep {
	var s []flowStep
	switch protocol {
	case protoTCP:
		s = []flowStep{{0, nattest.SYN, 0, false}, {1, nattest.SYN | nattest.ACK, 0, false}, {0, nattest.ACK, 0, false}}
		if m.IntN(6) == 0 { // begins in mid-stream
			s = []flowStep{{0, nattest.ACK, 100, false}, {1, nattest.ACK, 200, false}}
		}
		for range m.IntN(4) {
			s = append(s, flowStep{m.IntN(2), nattest.ACK | nattest.PSH, m.IntN(1200), false})
		}
		switch m.IntN(4) {
		case 0:
			s = append(s, flowStep{m.IntN(2), nattest.RST, 0, false})
		case 1:
			a := m.IntN(2)
			s = append(s, flowStep{a, nattest.FIN | nattest.ACK, 0, false}, flowStep{1 - a, nattest.FIN | nattest.ACK,
				0, false}, flowStep{a, nattest.ACK, 0, false})
		}
	default:
		// IPv6 without a payload looks like a jumbogram, which the engine refuses
		s = []flowStep{{size: 1 + m.IntN(1500)}}
		for range m.IntN(6) {
			s = append(s, flowStep{from: m.IntN(2), size: 1 + m.IntN(600)})
		}
	}
	if m.notrack {
		// Where only one direction is tracked, the kernel considers segments invalid and forwards
		// them untranslated, and ICMP errors quote packets that belong to no connection.
		if protocol == protoTCP {
			s = []flowStep{{flags: nattest.SYN}, {flags: nattest.SYN}}
		}
		if isICMPQuery(protocol) {
			s = slices.DeleteFunc(s, func(x flowStep) bool { return x.from == 1 })
		}
		return s
	}
	// Not after a RST, at which the kernel forgets a connection without an answer.
	end := slices.IndexFunc(s, func(x flowStep) bool { return x.flags&nattest.RST != 0 })
	if end < 0 {
		end = len(s)
	}
	if m.IntN(4) == 0 {
		s = slices.Insert(s, min(end, 1+m.IntN(end)), flowStep{from: 1, icmpErr: true})
	}
	if m.IntN(8) == 0 {
		s = slices.Insert(s, end, flowStep{from: 0, icmpErr: true})
	}
	return s
}

// next returns the flow's next packet, perhaps in fragments, and where it enters; nil when the flow
// is over.
func (m *maker) next(f *flow, id uint16) (nat.Link, [][]byte) {
	for ; f.step < len(f.script); f.step++ {
		s := f.script[f.step]
		e := &f.ends[s.from]
		if !e.open || s.icmpErr && e.last == nil {
			continue
		}
		// The kernel considers segments that fit no connection invalid, and forwards them
		// untranslated.
		if s.flags&(nattest.FIN|nattest.RST) != 0 && !f.ends[1].open || f.protocol == protoTCP &&
			f.script[0].flags == nattest.SYN && s.flags&nattest.SYN == 0 && !s.icmpErr && !f.answered {
			continue
		}
		f.step++
		if s.icmpErr {
			return e.link, [][]byte{m.icmpError(f, e, id)}
		}
		return e.link, m.packet(f, s, e, id)
	}
	return 0, nil
}

func (m *maker) packet(f *flow, s flowStep, e *end, id uint16) [][]byte {
	p := nattest.IP{Source: e.src.String(), Destination: e.dst.String(), ID: id, TTL: uint8(2 + m.IntN(250)),
		TOS: pick(m, uint8(0), 0, 1, 2), DF: m.IntN(3) > 0}
	if m.IntN(60) == 0 {
		p.TTL = 1
	}
	payload := nattest.Payload(s.size, m.Uint32())
	if f.protocol == protoOther && s.size < 4 {
		payload = make([]byte, 4)
	}
	switch f.protocol {
	case protoTCP:
		t := nattest.TCP{SourcePort: e.sport, DestinationPort: e.dport, Seq: f.seq[s.from], Ack: f.seq[1-s.from],
			Flags: s.flags, Window: 60000, Payload: payload}
		if s.flags&nattest.SYN != 0 {
			t.Options = pick(m,
				[]byte{2, 4, 5, 180},
				[]byte{2, 4, 4, 176},
				[]byte{1, 1, 4, 2, 2, 4, 35, 40},
				[]byte{1, 2, 4, 5, 180, 1, 0, 0}, // an MSS option at an odd offset
				nil)
			if m.fixture && len(t.Options) == 8 && t.Options[1] == 2 {
				t.Options = nil
			}
			f.seq[s.from]++
		}
		if s.flags&nattest.ACK == 0 {
			t.Ack = 0
		}
		if s.flags&nattest.FIN != 0 {
			f.seq[s.from]++
		}
		f.seq[s.from] += uint32(s.size)
		p.Body = t
	case protoUDP:
		p.Body = nattest.UDP{SourcePort: e.sport, DestinationPort: e.dport, Payload: payload, NoChecksum: !f.v6 &&
			m.IntN(4) == 0}
	case protoICMP:
		p.Body = nattest.ICMP{Type: map[int]uint8{0: 8, 1: 0}[s.from], Rest: uint32(e.sport)<<16 | uint32(f.step),
			Payload: payload}
	case protoICMPv6:
		p.Body = nattest.ICMP{Type: map[int]uint8{0: 128, 1: 129}[s.from], Rest: uint32(e.sport)<<16 | uint32(f.step),
			Payload: payload}
	default:
		// Rules with ports look at the first bytes. The engine keeps their verdict for the whole
		// direction.
		binary.BigEndian.PutUint16(payload, e.sport)
		binary.BigEndian.PutUint16(payload[2:], e.dport)
		p.Body = nattest.Raw{Protocol: f.protocol, Payload: payload}
	}
	// For protocols without ports, rules with ports look at the first bytes, which later fragments
	// lack.
	fragments := !m.ports || f.protocol == protoTCP || f.protocol == protoUDP
	if fragments && s.size > 100 && !m.fixture && m.IntN(6) == 0 {
		return m.fragments(p, id)
	}
	if f.v6 && m.IntN(6) == 0 {
		pad := []byte{0, 0, 1, 4, 0, 0, 0, 0}
		p.First, p.Extensions = pick(m, uint8(0), 60), [][]byte{pad}
		if p.First == 0 && m.IntN(2) == 0 {
			p.Extensions = [][]byte{{60, 0, 1, 4, 0, 0, 0, 0}, pad}
		}
	}
	return [][]byte{label(p.Bytes(), id)}
}

// fragments cuts p into two or more fragments, mostly in order.
func (m *maker) fragments(p nattest.IP, id uint16) [][]byte {
	p.DF = false
	whole, _ := nattest.Check(p.Bytes())
	body := len(whole.Body)
	// If the last fragment is shorter than a fragment header, the whole is no longer than the first
	// one, and the kernel sends it whole.
	size := 0
	for size == 0 || body%size > 0 && body%size < 16 {
		size = 8 * (5 + m.IntN(min(body, 1200)/8-9))
	}
	all := nattest.Pieces(p, size, uint32(id))
	for i := range all {
		all[i] = label(all[i], id)
	}
	if m.IntN(4) == 0 {
		m.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	}
	return all
}

// label puts id where both sides leave it alone: IPv4 packets already have it, IPv6 packets get it
// as flow label.
func label(b []byte, id uint16) []byte {
	if b[0]>>4 == 6 {
		binary.BigEndian.PutUint16(b[2:], id)
	}
	return b
}

func idOf(b []byte) uint16 {
	if b[0]>>4 == 6 {
		return binary.BigEndian.Uint16(b[2:])
	}
	return binary.BigEndian.Uint16(b[4:])
}

// icmpError returns an error about the last packet that came out at e, from a router beyond e or
// from the destination itself.
func (m *maker) icmpError(f *flow, e *end, id uint16) []byte {
	router := e.src // as answers of this end show it
	if m.IntN(3) > 0 {
		sources := m.plan.nodeSources
		if e.link == nat.Tunnel {
			sources = m.plan.tunnelSources
		}
		router = m.from(sources, f.v6)
	}
	quote := slices.Clone(e.last)
	p := nattest.IP{Source: router.String(), Destination: e.dst.String(), ID: id, TTL: uint8(2 + m.IntN(250))}
	if f.v6 {
		quote = quote[:min(len(quote), 1232)]
		p.Body = pick(m,
			nattest.ICMP{Type: 1, Code: 4, Payload: quote},
			nattest.ICMP{Type: 2, Rest: 1280, Payload: quote},
			nattest.ICMP{Type: 3, Payload: quote})
	} else {
		quote = quote[:min(len(quote), pick(m, 28, 28, 60, 548))]
		p.Body = pick(m,
			nattest.ICMP{Type: 3, Code: 3, Payload: quote},
			nattest.ICMP{Type: 3, Code: 4, Rest: 1200, Payload: quote},
			nattest.ICMP{Type: 11, Payload: quote})
	}
	return label(p.Bytes(), id)
}

// learn records what came out of the gateway, so that the other end can answer.
func (f *flow) learn(in, out nat.Link, sent []byte) {
	v, err := nattest.Check(sent)
	if err != nil || isError(v) {
		return
	}
	from := 0
	if f.ends[1].open && f.ends[1].link == in && f.script[f.step-1].from == 1 {
		from, f.answered = 1, true
	}
	other := &f.ends[1-from]
	other.last = sent
	if from == 0 && !other.open {
		*other = end{link: out, src: v.Destination, dst: v.Source, sport: v.DestinationPort, dport: v.SourcePort,
			last: sent, open: true}
		if f.protocol == protoOther {
			other.sport, other.dport = f.ends[0].dport, f.ends[0].sport
		}
	}
}

// moved reports whether the flow's packets left elsewhere before, while a rule masquerades.
func (f *flow) moved(tables []rules.Table, out nat.Link) bool {
	return f.ends[1].open && f.ends[1].link != out && have(tables, rules.ActionMasquerade)
}

// have reports whether a rule of tables has the action.
func have(tables []rules.Table, action rules.Action) bool {
	return slices.ContainsFunc(tables, func(t rules.Table) bool {
		return slices.ContainsFunc(t.Chains, func(c rules.Chain) bool {
			return slices.ContainsFunc(c.Rules, func(r rules.Rule) bool { return r.Action == action })
		})
	})
}

func isError(v nattest.View) bool {
	switch v.Protocol {
	case protoICMP:
		return v.Body[0] == 3 || v.Body[0] == 11 || v.Body[0] == 12
	case protoICMPv6:
		return v.Body[0] < 128
	}
	return false
}
