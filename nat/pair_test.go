package nat_test

import (
	"fmt"
	"testing"

	"culvert/nat"
	"culvert/nat/nattest"
	"culvert/nat/rules"
)

// dual gives the gateway of rome addresses of both families.
func dual(c *nat.Config) {
	c.GatewayAddress.V6, c.UnknownSource.V6 = address("fd80::4"), address("fd00:70::")
	c.TunnelAddress.V6, c.PeerTunnelAddress.V6 = address("fe80::a9fe:1202"), address("fe80::a9fe:1201")
}

const pod6, remote6, remoteReal6 = "fd00:200:0:1::5", "fd00:71:0:4000::9", "fd00:200::9"

// The gateway uses its address of a family for that family.
func TestErrorsOfBothFamilies(t *testing.T) {
	withoutU := func(c *nat.Config) { dual(c); c.UnknownSource = rules.Pair{} }
	for _, test := range []struct {
		name           string
		change         func(*nat.Config)
		in             nat.Link
		from, to, says string // "" = nothing
	}{
		{"IPv4 to a node", dual, node1, "10.200.1.5", "10.71.3.9", "10.80.0.4"},
		{"IPv6 to a node", dual, node1, pod6, remote6, "fd80::4"},
		{"IPv4 to the tunnel", dual, nat.Tunnel, "10.200.3.9", "10.200.1.5", "10.70.0.0"},
		{"IPv6 to the tunnel", dual, nat.Tunnel, remoteReal6, pod6, "fd00:70::"},
		{"IPv6 to the tunnel without U", withoutU, nat.Tunnel, remoteReal6, pod6, "fe80::a9fe:1202"},
		{"IPv6 from a gateway of IPv4", func(*nat.Config) {}, node1, pod6, remote6, ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			e := engine(t, test.change)
			p := udp(test.from, test.to, 1, 2)
			p.TTL = 1
			v := dropped(t, e, test.in, p.Bytes(), start, nat.ReasonTTLExceeded)
			got := answer(t, e, test.in, p.Bytes(), v, start)
			if (got != nil) != (test.says != "") {
				t.Fatalf("answer % x", got)
			} else if got != nil {
				view, _ := nattest.Check(got)
				expect(t, view, test.says, test.from)
			}
			ledger(t, e)
		})
	}
}

// What may be a source over IPv6, and what is for the gateway itself.
func TestSourcesOfIPv6(t *testing.T) {
	for _, test := range []struct {
		name     string
		in       nat.Link
		from, to string
		want     nat.Reason // ReasonNone: it is delivered or goes on
	}{
		{"a pod", node1, pod6, remote6, nat.ReasonNone},
		{"a pod to the gateway", node1, pod6, "fd80::4", nat.ReasonNone},
		{"a client of no pod", node1, "2001:db8::7", remote6, nat.ReasonNone},
		{"another node's pod", node2, pod6, remote6, nat.ReasonBadSource},
		{"the remote cluster's", node1, remote6, remote6, nat.ReasonBadSource},
		{"the gateway's own", node1, "fd80::4", remote6, nat.ReasonBadSource},
		{"the tunnel's", node1, "fe80::a9fe:1202", remote6, nat.ReasonBadSource},
		{"the peer's", node1, "fe80::a9fe:1201", remote6, nat.ReasonBadSource},
		{"link-local", node1, "fe80::5", remote6, nat.ReasonBadSource},
		{"multicast", node1, "ff02::5", remote6, nat.ReasonBadSource},
		{"unspecified", node1, "::", remote6, nat.ReasonBadSource},
		{"loopback", node1, "::1", remote6, nat.ReasonBadSource},
		{"mapped", node1, "::ffff:10.200.1.5", remote6, nat.ReasonBadSource},
		{"to the tunnel's", node1, pod6, "fe80::a9fe:1201", nat.ReasonBadDestination},
		{"to a group", node1, pod6, "ff05::1", nat.ReasonBadDestination},
		{"from the peer itself", nat.Tunnel, "fe80::a9fe:1201", "fe80::a9fe:1202", nat.ReasonNone},
		{"from the peer itself to a pod", nat.Tunnel, "fe80::a9fe:1201", pod6, nat.ReasonBadSource},
		{"from the peer's pods to the gateway", nat.Tunnel, remoteReal6, "fe80::a9fe:1202", nat.ReasonNone},
		{"from another link-local", nat.Tunnel, "fe80::5", "fe80::a9fe:1202", nat.ReasonBadSource},
		{"from ourselves", nat.Tunnel, "fe80::a9fe:1202", "fe80::a9fe:1202", nat.ReasonBadSource},
		{"from elsewhere", nat.Tunnel, "2001:db8::7", pod6, nat.ReasonBadSource},
		{"from the peer's pods to our internal address", nat.Tunnel, remoteReal6, "fd80::4", nat.ReasonNoRoute},
	} {
		t.Run(test.name, func(t *testing.T) {
			e := engine(t, dual)
			v, _ := process(t, e, test.in, udp(test.from, test.to, 1, 2).Bytes(), start)
			if v.Reason != test.want || (v.Action == nat.Drop) != (test.want != nat.ReasonNone) {
				t.Errorf("%v %v, want %v", v.Action, v.Reason, test.want)
			}
			ledger(t, e)
		})
	}
}

// Sending a later fragment first does not circumvent it.
func TestFragmentFromThePeerItself(t *testing.T) {
	e := engine(t, dual)
	b := nattest.IP{Source: "fe80::a9fe:1201", Destination: pod6, First: 44,
		Extensions: [][]byte{{0, 0, 0, 80, 0, 0, 0, 9}},
		Body:       nattest.Raw{Protocol: 17, Payload: nattest.Payload(80, 1)}}.Bytes()
	dropped(t, e, nat.Tunnel, b, start, nat.ReasonBadSource)
	ledger(t, e)
}

// Fragments belong together by addresses and identification (RFC 8200, Section 4.5), and headers
// before the ports count as bytes of the datagram: nobody can overwrite ports that a filter has
// seen.
func TestFragmentsBehindDestinationOptions(t *testing.T) {
	const client = "2001:db8::7"
	fragment := func(offset, more byte, options []byte, body nattest.Body) []byte {
		ip := nattest.IP{Source: client, Destination: remote6, First: 44,
			Extensions: [][]byte{{60, 0, 0, offset | more, 0, 0, 0, 9}}, Body: body}
		if options != nil {
			ip.Extensions = append(ip.Extensions, options)
		}
		return ip.Bytes()
	}
	first := fragment(0, 1, []byte{0, 0, 1, 4, 0, 0, 0, 0}, nattest.UDP{SourcePort: 4000, DestinationPort: 53,
		Payload: nattest.Payload(16, 1)})
	for _, test := range []struct {
		offset, protocol byte
		want             nat.Reason
	}{
		{32, 60, nat.ReasonNone}, {32, 17, nat.ReasonNone}, {24, 60, nat.ReasonFragmentOverlap},
		{8, 60, nat.ReasonFragmentOverlap}, {24, 17, nat.ReasonFragmentOverlap},
	} {
		t.Run(fmt.Sprintf("%d of protocol %d", test.offset, test.protocol), func(t *testing.T) {
			e := engine(t, dual)
			forwarded(t, e, node1, first, start)
			later := fragment(test.offset, 0, nil, nattest.Raw{Protocol: test.protocol,
				Payload: nattest.Payload(40, 2)})
			if test.want != nat.ReasonNone {
				dropped(t, e, node1, later, start, test.want)
			} else {
				_, view, _ := forwarded(t, e, node1, later, start)
				expect(t, view, "fd00:70::", remoteReal6)
			}
			ledger(t, e)
		})
	}
}

// Clients that are no pods share U of their family, and answers find them.
func TestUnknownSourceIPv6(t *testing.T) {
	e := engine(t, dual)
	for i, client := range []string{"2001:db8::7", "2001:db8::8", "fd80::2"} {
		_, view, _ := forwarded(t, e, node1, udp(client, remote6, 4000, 53).Bytes(), start)
		expect(t, view, "fd00:70::", remoteReal6)
		if (view.SourcePort == 4000) != (i == 0) {
			t.Errorf("%s has port %d", client, view.SourcePort)
		}
		v, back, _ := forwarded(t, e, nat.Tunnel, udp(remoteReal6, "fd00:70::", 53, view.SourcePort).Bytes(), start)
		if expect(t, back, remote6, client); v.Out != node1 || back.DestinationPort != 4000 {
			t.Errorf("to link %d, port %d", v.Out, back.DestinationPort)
		}
	}
	e = engine(t, dual, func(c *nat.Config) { c.UnknownSource = rules.PairOf(address("10.70.0.0")) })
	dropped(t, e, node1, udp("2001:db8::7", remote6, 4000, 53).Bytes(), start, nat.ReasonUnknownSource)
	forwarded(t, e, node1, udp("203.0.113.7", "10.71.3.9", 4000, 53).Bytes(), start)
}

// An error that the peer's gateway sends from its link-local address arrives from the address that
// the client contacted.
func TestErrorOfThePeersGateway(t *testing.T) {
	e := engine(t, dual)
	_, _, sent := forwarded(t, e, node1, udp(pod6, remote6, 4000, 53).Bytes(), start)
	b := nattest.IP{Source: "fe80::a9fe:1201", Destination: pod6, Body: nattest.ICMP{Type: 3, Payload: sent}}.Bytes()
	v, view, _ := forwarded(t, e, nat.Tunnel, b, start)
	if expect(t, view, remote6, pod6); v.Out != node1 {
		t.Errorf("to link %d", v.Out)
	}
}

// A host with a /64 gets no more errors than one with a single address.
func TestErrorRateOfA64(t *testing.T) {
	e := engine(t, dual)
	told := func(format string) (n int) {
		for i := range 50 {
			p := udp(fmt.Sprintf(format, i+1), remote6, 1, 2)
			p.TTL = 1
			v := dropped(t, e, node1, p.Bytes(), start, nat.ReasonTTLExceeded)
			if answer(t, e, node1, p.Bytes(), v, start) != nil {
				n++
			}
		}
		return n
	}
	if n := told("2001:db8:0:1::%x"); n != 20 {
		t.Errorf("%d errors at once to one /64, want 20", n)
	}
	e = engine(t, dual)
	if n := told("2001:db8:0:%x::1"); n != 50 {
		t.Errorf("%d errors to 50 of them", n)
	}
}
