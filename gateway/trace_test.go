package gateway

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"

	"culvert/gateway/config"
	"culvert/gateway/control"
	"culvert/geneve/genevetest"
	"culvert/integration/need"
	"culvert/nat"
	"culvert/nat/nattest"
	"culvert/nat/rules"
)

// newTraced returns a pair whose gateways have rules, mappings and services.
func newTraced(t testing.TB) (*pair, *control.Client) {
	return newControlled(t, func(rome, milan *config.Config) {
		milan.MTU = 1280
		for i, c := range []*config.Config{rome, milan} {
			c.Addresses = []config.AddressMapping{{External: rules.PairOf(netip.MustParseAddr("10.70.0.9")),
				Internal: rules.PairOf(netip.MustParseAddr("192.0.2.10")), Via: c.Geneve.Nodes[i].Name}}
			c.Services = []config.Service{{Name: "web", Address: rules.PairOf(netip.MustParseAddr("10.70.0.20")),
				Port: 53, Protocol: 17, Backends: []config.Backend{
					{Address: netip.MustParseAddr("10.0.1.7"), Port: 5353, Weight: 1},
					{Address: netip.MustParseAddr("10.0.2.7"), Port: 5353, Weight: 1}}}}
			c.Rules = []rules.FilterRule{
				{Name: "let", Source: []netip.Prefix{netip.MustParsePrefix("10.0.1.240/29")}, Protocol: 17,
					Ports: []rules.PortRange{{First: 7, Last: 7}}, Action: rules.FilterAccept},
				{Name: "drop", Protocol: 17, Ports: []rules.PortRange{{First: 7, Last: 7}}, Action: rules.FilterDrop},
				{Name: "reject", Protocol: 17, Ports: []rules.PortRange{{First: 9, Last: 9}},
					Action: rules.FilterReject},
			}
		}
	})
}

// A wanderer makes random packets that go through all features of gateways.
type wanderer struct {
	*rand.Rand
	seen []answerable
}

// An answerable is a packet that has arrived and can be answered.
type answerable struct {
	cluster, node int
	nattest.View
}

func choose[T any](r *rand.Rand, all ...T) T { return all[r.IntN(len(all))] }

// next returns a packet, with the cluster and node that send it.
func (w *wanderer) next() (cluster, node int, p []byte) {
	cluster, node = w.IntN(2), w.IntN(2)
	far, farExternal := []string{"10.61.", "10.62."}[cluster], []string{"10.71.", "10.72."}[cluster]
	pod := []string{"10.0.1.", "10.0.2."}[node]
	ip := nattest.IP{
		Source: pod + fmt.Sprint(5+w.IntN(20)), Destination: far + choose(w.Rand, "1.", "2.") + fmt.Sprint(5+w.IntN(9)),
		ID: uint16(w.Uint32()), TTL: 64,
	}
	payload := nattest.Payload(w.IntN(200), w.Uint32())
	port := uint16(1024 + w.IntN(3000))
	ip.Body = nattest.UDP{SourcePort: port, DestinationPort: choose[uint16](w.Rand, 53, 4000), Payload: payload}
	switch w.IntN(24) {
	case 0, 1:
		ip.Body = nattest.TCP{SourcePort: port, DestinationPort: 80, Seq: w.Uint32(), Flags: nattest.SYN, Window: 1000,
			Options: []byte{2, 4, 5, 180}}
	case 2:
		ip.Body = nattest.ICMP{Type: 8, Rest: uint32(port) << 16, Payload: payload}
	case 3:
		ip.Source = "203.0.113." + fmt.Sprint(1+w.IntN(250))
	case 4:
		ip.Destination = farExternal + "0.9"
	case 5:
		ip.Destination = farExternal + "0.20"
		ip.Body = nattest.UDP{SourcePort: port, DestinationPort: 53, Payload: payload}
	case 6:
		ip.Destination = farExternal + "0.99" // no-mapping
	case 7:
		// bad-source
		ip.Source = choose(w.Rand, "127.0.0.1", far+"1.5", "10.80.0.4", []string{"10.0.2.5", "10.0.1.5"}[node])
	case 8:
		ip.Destination = choose(w.Rand, "224.0.0.5", "127.0.0.1", "255.255.255.255") // bad-destination
	case 9:
		ip.Destination = choose(w.Rand, "8.8.8.8", far+"200.9") // no-route, here or there
	case 10:
		ip.TTL = uint8(1 + w.IntN(2)) // ttl-exceeded, here or there
	case 11:
		ip.DF = w.IntN(3) > 0 // too-big, here or there
		ip.Body = nattest.UDP{SourcePort: port, DestinationPort: 53,
			Payload: nattest.Payload(choose(w.Rand, 1290, 1400), 1)}
	case 12:
		ip.Body = nattest.ICMP{Type: 5, Payload: make([]byte, 28)} // icmp-type
	case 13:
		quoted := nattest.IP{Source: ip.Destination, Destination: "10.9.9.9", Body: nattest.UDP{SourcePort: 1,
			DestinationPort: 2}}.Bytes()
		ip.Body = nattest.ICMP{Type: 3, Code: 1, Payload: quoted} // icmp-unrelated
	case 14:
		ip.Body = nattest.UDP{SourcePort: port, DestinationPort: choose[uint16](w.Rand, 7, 9)} // filtered, rejected
	case 15:
		ip.Options = []byte{131, 3, 4, 0} // source-route
	case 16:
		p = ip.Bytes()
		p[10] ^= 0x55 // malformed
		return cluster, node, p
	case 17:
		ip.Destination = "10.80.0.4"
		if w.IntN(2) == 0 {
			ip.Body = nattest.ICMP{Type: 8, Rest: uint32(port) << 16, Payload: payload}
		}
	case 18:
		ip.Destination = []string{"10.0.2.", "10.0.1."}[node] + "9" // to the other node
	case 19:
		ip.Offset, ip.Body = 8*(1+w.IntN(100)), nattest.Raw{Protocol: 17, Payload: payload[:len(payload)&^7]}
		ip.MF = len(payload) >= 8
		if len(payload) < 8 {
			ip.Body = nattest.Raw{Protocol: 17, Payload: []byte{1}}
		}
		if w.IntN(2) == 0 {
			ip.Source = "203.0.113.7" // waits for its first fragment
		}
	case 20, 21, 22:
		if len(w.seen) > 0 {
			a := w.seen[w.IntN(len(w.seen))]
			cluster, node = a.cluster, a.node
			ip.Source, ip.Destination = a.Destination.String(), a.Source.String()
			ip.Body = nattest.UDP{SourcePort: a.DestinationPort, DestinationPort: a.SourcePort, Payload: payload}
		}
	}
	return cluster, node, ip.Bytes()
}

// A passage is a packet's way through both gateways, as they explain it.
type passage struct {
	last   *control.Trace
	at     int // cluster where it ends
	node   int // that receives it
	packet []byte
}

// foresee returns what the gateways say about a packet that enters at a link of the first one.
func foresee(clusters [2]*cluster, at int, in nat.Link, b []byte) (all []passage) {
	g := clusters[at].Gateway
	t := g.inspect.Explain(bytes.Clone(b), in)
	if t.Verdict != "forward" {
		return []passage{{last: t, at: at}}
	}
	for _, sent := range t.Sent {
		if t.To == config.Tunnel {
			all = append(all, foresee(clusters, 1-at, nat.Tunnel, sent.Bytes)...)
		} else {
			node := slices.IndexFunc(g.config().Geneve.Nodes, func(n config.Node) bool { return n.Name == t.To })
			all = append(all, passage{t, at, node, sent.Bytes})
		}
	}
	return all
}

// A dropKey names a counter of dropped packets.
type dropKey struct{ direction, reason string }

// dropsOf returns the counters of dropped packets.
func dropsOf(g *Gateway) map[dropKey]uint64 {
	all := make(map[dropKey]uint64)
	stats, tunnels, tunnel := g.engine.Stats(), g.endpoint.Stats(), g.wg.Stats()
	g.path.EachDrop(&stats, &tunnels, &tunnel, func(direction, reason string, packets uint64) {
		all[dropKey{direction, reason}] += packets
	})
	return all
}

// Explanation and reality agree: the far node's socket receives the packet that both gateways
// predict, byte for byte, or the predicted reason is counted.
func TestTraceIsPath(t *testing.T) {
	n := 600
	if os.Getenv("CULVERT_LONG") != "" {
		n = 200_000
	}
	p, _ := newTraced(t)
	clusters := [2]*cluster{p.rome, p.milan}
	for _, c := range clusters { // every node has sent something, so that the gateways know its MAC address
		for k := range c.nodes {
			c.nodes[k].Send(udpPacket([]string{"10.0.1.5", "10.0.2.5"}[k], "10.80.0.4", nil))
			want := uint64(k + 1)
			awaits(t, func() bool { return dropsOf(c.Gateway)[dropKey{"outbound", "no-service"}] >= want })
		}
	}
	p.rome.nodes[0].Send(udpPacket("10.0.1.5", "10.61.1.7", nil)) // and there is a session
	until(t, p.milan.nodes[0], 4000)
	seed := [2]uint64{rand.Uint64(), rand.Uint64()}
	t.Logf("seed %d", seed)
	w := &wanderer{Rand: rand.New(rand.NewPCG(seed[0], seed[1]))}
	reasons, verdicts := map[string]int{}, map[string]int{}
	for i := range n {
		at, node, b := w.next()
		for _, c := range clusters {
			for _, x := range c.nodes {
				x.Drain()
			}
		}
		from := clusters[at]
		said := foresee(clusters, at, from.links().ByName[from.config().Geneve.Nodes[node].Name], b)
		var before [2]map[dropKey]uint64
		var held [2]nat.Stats
		for k, c := range clusters {
			before[k], held[k] = dropsOf(c.Gateway), c.engine.Stats()
		}
		from.nodes[node].Send(b)
		lost := map[[2]string]uint64{}
		for _, s := range said {
			verdicts[s.last.Verdict]++
			c := clusters[s.at]
			direction := "outbound"
			if s.last.From == config.Tunnel {
				direction = "inbound"
			}
			what := fmt.Sprintf("packet %d, %x by node %d of cluster %d; %+v", i, b, node, at, s.last)
			switch s.last.Verdict {
			case "forward":
				receive(t, c.nodes[s.node], s.packet, what)
				if v, err := nattest.Check(s.packet); err == nil && v.DestinationPort > 0 && len(s.packet) < 1000 {
					w.seen = append(w.seen, answerable{s.at, s.node, v})
					w.seen = w.seen[max(0, len(w.seen)-300):]
				}
			case "deliver":
				receive(t, from.nodes[node], nil, what)
			case "drop":
				reasons[s.last.Reason]++
				key := [2]string{fmt.Sprint(s.at), s.last.Reason}
				lost[key]++
				awaits(t, func() bool {
					return dropsOf(c.Gateway)[dropKey{direction, s.last.Reason}] >= before[s.at][dropKey{direction,
						s.last.Reason}]+lost[key]
				}, what)
			case "hold":
				awaits(t, func() bool {
					st := c.engine.Stats()
					return st.Outbound.Received+st.Inbound.Received > held[s.at].Outbound.Received+
						held[s.at].Inbound.Received
				}, what)
			}
		}
	}
	t.Logf("%v\n%v", verdicts, reasons)
	for _, reason := range []string{"bad-source", "bad-destination", "no-route", "no-mapping", "ttl-exceeded",
		"too-big", "icmp-type", "icmp-unrelated",
		"filtered", "rejected", "source-route", "malformed", "no-service"} {
		if reasons[reason] < max(1, n/2000) {
			t.Errorf("%d packets dropped for %s, want %d", reasons[reason], reason, max(1, n/2000))
		}
	}
	for _, verdict := range []string{"forward", "deliver", "drop", "hold"} {
		if verdicts[verdict] < max(1, n/2000) {
			t.Errorf("%d times %s, want %d", verdicts[verdict], verdict, max(1, n/2000))
		}
	}
}

// awaits waits until a condition holds that packets under way bring about.
func awaits(t testing.TB, done func() bool, what ...any) {
	t.Helper()
	need.Eventually(t, genevetest.Timeout, fmt.Sprint(what...), func() error {
		if !done() {
			return errors.New("nothing happened")
		}
		return nil
	})
}

// receive waits for a packet at a node; nil expects the gateway's echo reply. It ignores others,
// such as errors about earlier packets.
func receive(t testing.TB, n *genevetest.Node, want []byte, what string) {
	t.Helper()
	for {
		b := n.Receive()
		if bytes.Equal(b, want) || want == nil && b[9] == 1 && b[20] == 0 &&
			binary.BigEndian.Uint32(b[12:]) == 0x0a500004 {
			return
		}
		if v, err := nattest.Check(b); err == nil && v.Protocol != 1 {
			t.Fatalf("%x arrives, want %x: %s", b, want, what)
		}
	}
}

// traced returns the gateway's answer to a query.
func traced(t testing.TB, client *control.Client, o control.TraceOptions) (all []*control.Trace) {
	t.Helper()
	if err := control.Each(t.Context(), client, "/v1/trace", o.Values(), func(x *control.Trace) bool {
		all = append(all, x)
		return true
	}); err != nil {
		t.Fatal(err)
	}
	return all
}

func tcpTrace(from, source, destination string) control.TraceOptions {
	return control.TraceOptions{From: from, Protocol: "tcp", Source: netip.MustParseAddrPort(source),
		Destination: netip.MustParseAddrPort(destination)}
}

func udpTrace(from, source, destination string) control.TraceOptions {
	o := tcpTrace(from, source, destination)
	o.Protocol = "udp"
	return o
}

// TestTraceTells: a trace gives tunnel, rule, route and remedy by name and field.
func TestTraceTells(t *testing.T) {
	p, client := newTraced(t)
	deaf(p.rome.nodes[1]) // one row expects that it has not answered
	p.rome.nodes[0].Send(udpPacket("10.0.1.5", "10.61.1.7", nil))
	expect(t, p.milan.nodes[0], "10.62.1.5", "10.0.1.7")
	for _, tt := range []struct {
		name    string
		options control.TraceOptions
		verdict string // verdict, reason, why, told
		egress  string // to, egress
		step    control.TraceStep
	}{
		{"a new connection", tcpTrace("", "10.0.1.5:40000", "10.61.1.7:80"), "forward",
			"tunnel encrypted to 127.0.0.1:",
			control.TraceStep{Kind: "rule", Name: "remap-podcidr/outgoing/10.61.0.0/16", Passed: true,
				Detail: "dnat 10.0.0.0/16", Origin: "network/remap", Field: "network.remote.podCIDRs[0]"}},
		{"its node", tcpTrace("rome-2", "10.0.2.5:40000", "10.61.1.7:80"), "forward", "tunnel encrypted to",
			control.TraceStep{Kind: "decode", Name: "vxlan", Passed: true,
				Detail: "rome-2 has VNI 7 and sends from 127.0.10.3", Origin: "node/rome-2", Field: "geneve.nodes[1]"}},
		{"a connection", udpTrace("rome-1", "10.0.1.5:4000", "10.61.1.7:53"), "forward", "tunnel encrypted to",
			control.TraceStep{Kind: "connection", Name: "1", Passed: true,
				Detail: "udp, direction original, mark 1; this packet meets the rules"}},
		{"a rule", udpTrace("rome-1", "10.0.1.5:4000", "10.61.1.7:7"),
			"drop; filtered; rule rules/forward/drop refuses it: change rules if that is not meant", "",
			control.TraceStep{Kind: "rule", Name: "rules/forward/drop", Passed: true, Detail: "drop",
				Origin: "network/rules", Field: "rules[1]"}},
		{"what would let it through", udpTrace("rome-1", "10.0.1.5:4000", "10.61.1.7:7"),
			"drop; filtered; rule rules/forward/drop refuses it: change rules if that is not meant", "",
			control.TraceStep{Kind: "nearest", Name: "rules/forward/let", Detail: "only for src 10.0.1.240/29",
				Origin: "network/rules", Field: "rules[0]"}},
		{"what it is told", udpTrace("rome-1", "10.0.1.5:4000", "10.61.1.7:9"),
			"drop; rejected; rule rules/forward/reject refuses it: change rules if that is not meant; ICMP: network unreachable", "",
			control.TraceStep{Kind: "rule", Name: "rules/forward/reject", Passed: true, Detail: "reject",
				Origin: "network/rules", Field: "rules[2]"}},
		{"another node's pod", tcpTrace("rome-1", "10.0.2.5:40000", "10.61.1.7:80"),
			"drop; bad-source; 10.0.2.5 is an address of rome-2: give the CIDR to the node that its pods are on", "",
			control.TraceStep{Kind: "check", Name: "source"}},
		{"a route", tcpTrace("tunnel", "10.0.1.9:80", "10.0.2.5:40000"), "forward",
			"rome-2 waits until rome-2 answers ARP for 10.80.0.3",
			control.TraceStep{Kind: "route", Name: "rome-2/2", Passed: true, Detail: "to rome-2, with mark 0",
				Origin: "node/rome-2", Field: "geneve.nodes[1]"}},
		{"no route", tcpTrace("tunnel", "10.0.1.9:80", "10.0.200.5:40000"),
			"drop; no-route; no node has it: add its CIDR to podCIDRs of its node in geneve.nodes; ICMP: host unreachable", "",
			control.TraceStep{Kind: "route", Detail: "nowhere, with mark 0"}},
		{"a node itself", tcpTrace("tunnel", "10.0.1.9:4321", "10.80.0.2:2222"),
			"drop; to-node; it is a node's own address: give the node an address in nat.addresses", "",
			control.TraceStep{Kind: "check", Name: "the destination is no node's own address"}},
		{"no mapping", tcpTrace("tunnel", "10.0.1.9:80", "10.70.0.20:80"),
			"drop; no-mapping; it stands for nothing: add it to nat.addresses", "",
			control.TraceStep{Kind: "nearest", Name: "web", Detail: "only for protocol udp, dport 53"}},
		{"a service", udpTrace("tunnel", "10.0.1.9:80", "10.70.0.20:53"), "forward", "rome-",
			control.TraceStep{Kind: "service", Name: "web", Passed: true, Origin: "service/web 10.70.0.20:53/17",
				Field: "nat.services[0]"}},
		{"the gateway", udpTrace("rome-1", "10.0.1.5:80", "10.80.0.4:53"),
			"drop; no-service; the gateway itself answers pings and no more there; ICMP: port unreachable", "",
			control.TraceStep{Kind: "check", Name: "source", Passed: true}},
	} {
		all := traced(t, client, tt.options)
		if len(all) != 1 {
			t.Fatalf("%s: %d traces", tt.name, len(all))
		}
		x := all[0]
		verdict := strings.Join(slices.DeleteFunc([]string{x.Verdict, x.Reason, x.Why, x.Told},
			func(s string) bool { return s == "" }), "; ")
		if egress := x.To + " " + x.Egress; !strings.HasPrefix(verdict, tt.verdict) ||
			!strings.HasPrefix(egress, tt.egress) {
			t.Errorf("%s: %q, %q; want %q, %q", tt.name, verdict, egress, tt.verdict, tt.egress)
		}
		if !slices.ContainsFunc(x.Steps, func(s control.TraceStep) bool {
			s.From, s.To = "", ""
			return s == tt.step
		}) {
			t.Errorf("%s: no step %+v among", tt.name, tt.step)
			for _, s := range x.Steps {
				t.Logf("%+v", s)
			}
		}
	}
}

// TestTraceConnection: for a connection, a trace explains the next packet of each end.
func TestTraceConnection(t *testing.T) {
	p, client := newTraced(t)
	p.rome.nodes[1].Send(udpPacket("203.0.113.9", "10.61.1.7", nil))
	expect(t, p.milan.nodes[0], "10.72.0.0", "10.0.1.7")
	c := listed(t, client, "address=203.0.113.9")[0]
	all := traced(t, client, control.TraceOptions{Connection: c.ID})
	if len(all) != 2 || all[0].From != "rome-2" || all[0].To != "tunnel" || all[1].From != "tunnel" ||
		all[1].To != "rome-2" ||
		all[0].Sent[0].Source.String() != "10.70.0.0" || all[1].Sent[0].Destination.String() != "203.0.113.9" ||
		all[1].Sent[0].DestinationPort != 4000 {
		t.Errorf("%+v", all)
	}
	for _, x := range all {
		if !slices.ContainsFunc(x.Steps, func(s control.TraceStep) bool {
			return s.Kind == "connection" &&
				s.Name == fmt.Sprint(c.ID)
		}) {
			t.Errorf("it is not of connection %d: %+v", c.ID, x)
		}
	}
	if now := listed(t, client, "address=203.0.113.9")[0]; now.Sent != c.Sent || now.Received != c.Received ||
		now.Replied {
		t.Errorf("a trace has changed the connection: %+v, %+v", c, now)
	}
}

// TestTraceRefuses: a packet that cannot be explained is refused by the name of the bad field.
func TestTraceRefuses(t *testing.T) {
	_, client := newTraced(t)
	small := tcpTrace("rome-1", "10.0.1.5:1", "10.61.1.7:80")
	small.Size = 39
	for want, o := range map[string]control.TraceOptions{
		"from: no node \"rome-9\"; there are rome-1, rome-2, tunnel": tcpTrace("rome-9", "10.0.1.5:1", "10.61.1.7:80"),
		"from: no node has pods with the address 10.9.9.9":           tcpTrace("", "10.9.9.9:1", "10.61.1.7:80"),
		"connection 77: there is none":                               {Connection: 77},
		"size: 39 bytes; tcp takes at least 40":                      small,
	} {
		err := control.Each(t.Context(), client, "/v1/trace", o.Values(), func(*control.Trace) bool { return true })
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: %v, want %q", o, err, want)
		}
	}
}

// TestTraceOfAnswers: a trace says that a packet may answer a probe of the gateway, wherever it
// comes from; other ICMP is dropped.
func TestTraceOfAnswers(t *testing.T) {
	p, _ := newTraced(t)
	for icmpType, want := range map[uint8]string{0: "deliver an answer, if the gateway has asked", 13: "drop "} {
		for in, ends := range map[nat.Link][2]string{p.rome.links().ByName["rome-1"]: {"10.80.0.2", "10.80.0.4"},
			nat.Tunnel: {"169.254.18.1", "169.254.18.2"}} {
			b := nattest.IP{Source: ends[0], Destination: ends[1], Body: nattest.ICMP{Type: icmpType,
				Payload: make([]byte, 16)}}.Bytes()
			if x := p.rome.inspect.Explain(b, in); !strings.HasPrefix(x.Verdict+" "+x.Egress, want) {
				t.Errorf("type %d from %s: %s, %q; want %q", icmpType, x.From, x.Verdict, x.Egress, want)
			}
		}
	}
}
