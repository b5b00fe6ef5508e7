package liqo

import (
	"fmt"
	"strings"
	"testing"

	"culvert/nat"
	"culvert/nat/nattest"
)

const schemaText = `{kind: FirewallConfiguration, metadata: {name: user, namespace: default, uid: user, creationTimestamp: "2026-11-21T00:00:00Z",
	labels: {networking.liqo.io/firewall-category: gateway, networking.liqo.io/firewall-subcategory: all-gateways}},
	spec: {table: {name: user, family: FAMILY, chains: [CHAINS]}}}`

// The InternalFabric and the tunnel address of the captures' gateway towards cluster-b.
const ownAddress, ownTunnelAddress = "10.80.0.3", "169.254.18.1"

// The fates of packets with nothing but the captures.
const (
	outwardGoes = podN1 + " > " + remotePod
	inwardGoes  = remotePodHere + " > " + podN1
)

// fate says what becomes of a packet.
func fate(t *testing.T, e *nat.Engine, in nat.Link, p nattest.IP) string {
	t.Helper()
	v, view := send(t, e, in, p)
	switch {
	case v.Action == nat.Drop:
		return "drop " + v.Reason.String()
	case v.Action != nat.Forward:
		return v.Action.String()
	}
	text := fmt.Sprintf("%s > %s", view.Source, view.Destination)
	if e.Stats().Connections == 0 {
		text += " untracked"
	}
	if tcp, ok := p.Body.(nattest.TCP); ok && len(tcp.Options) > 0 {
		// RFC 9293, Section 3.2: kind, length, MSS
		text += fmt.Sprintf(" mss %d", int(view.Body[22])<<8+int(view.Body[23]))
	}
	return text
}

// Everything that a FirewallConfiguration can express and a gateway can do is accepted, and packets
// are treated as a kernel would.
func TestFirewallConfigurations(t *testing.T) {
	outward, inward := udp(podN1, remotePodHere, 7, 80), udp(remotePod, podN1, 7, 80)
	ping := nattest.IP{Source: podN1, Destination: ownAddress, Body: nattest.ICMP{Type: 8}}
	pong := nattest.IP{Source: ownAddress, Destination: podN1, Body: nattest.ICMP{}}
	syn := nattest.IP{Source: podN1, Destination: remotePodHere, Body: nattest.TCP{SourcePort: 7, DestinationPort: 80,
		Flags: nattest.SYN, Options: []byte{2, 4, 5, 180}}}
	filter := func(hook string, priority int, rules string) string {
		return fmt.Sprintf(
			"{name: c, type: filter, hook: %s, policy: accept, priority: %d, rules: {filterRules: [%s]}}", hook,
			priority, rules)
	}
	closed := func(hook, rules string) string {
		return fmt.Sprintf("{name: c, type: filter, hook: %s, policy: drop, priority: 0, rules: {filterRules: [%s]}}",
			hook, rules)
	}
	translate := func(hook string, priority int, rules string) string {
		return fmt.Sprintf("{name: c, type: nat, hook: %s, policy: accept, priority: %d, rules: {natRules: [%s]}}",
			hook, priority, rules)
	}
	drop := func(match string) string {
		return fmt.Sprintf("{name: r, action: drop, counter: true, match: [%s]}", match)
	}
	source := func(op, value string) string {
		return fmt.Sprintf("{op: %s, ip: {value: %q, position: src}}", op, value)
	}
	destination := func(op, value string) string {
		return fmt.Sprintf("{op: %s, ip: {value: %q, position: dst}}", op, value)
	}
	port := func(op, value string) string {
		return fmt.Sprintf("{op: %s, port: {value: %q, position: dst}}", op, value)
	}
	device := func(op, name, position string) string {
		return fmt.Sprintf("{op: %s, dev: {value: %q, position: %s}}", op, name, position)
	}
	const filtered = "drop filtered"
	for _, tt := range []struct {
		name, family, chains string
		in                   nat.Link
		packet               nattest.IP
		want                 string
	}{
		{"family IPV4", "IPV4", filter("forward", 0, drop("")), linkN1, outward, filtered},
		{"family INET", "INET", filter("forward", 0, drop("")), linkN1, outward, filtered},
		{"family IPV6 does not see IPv4", "IPV6", filter("forward", 0, drop("")), linkN1, outward, outwardGoes},
		{"no chain", "IPV4", "", linkN1, outward, outwardGoes},
		{"an empty chain", "IPV4", filter("forward", 0, ""), linkN1, outward, outwardGoes},
		{"an empty chain that drops", "IPV4", closed("forward", ""), linkN1, outward, filtered},
		{"an empty nat chain", "IPV4", translate("prerouting", -100, ""), linkN1, outward, outwardGoes},

		{"prerouting before connections sees what came", "IPV4", filter("prerouting", -300,
			drop(destination("eq", remotePodHere))), linkN1, outward, filtered},
		{"prerouting before translation", "IPV4", filter("prerouting", -150, drop(destination("eq", remotePodHere))),
			linkN1, outward, filtered},
		{"prerouting after translation", "IPV4", filter("prerouting", 0, drop(destination("eq", remotePod))), linkN1,
			outward, filtered},
		{"prerouting after translation sees nothing that came", "IPV4",
			filter("prerouting", 0, drop(destination("eq", remotePodHere))), linkN1, outward, outwardGoes},
		{"forward", "IPV4", filter("forward", 0, drop(source("eq", remotePod))), nat.Tunnel, inward, filtered},
		{"postrouting before translation", "IPV4", filter("postrouting", 0, drop(source("eq", remotePod))), nat.Tunnel,
			inward, filtered},
		{"postrouting after translation", "IPV4", filter("postrouting", 150, drop(source("eq", remotePodHere))),
			nat.Tunnel, inward, filtered},
		{"input is not met by what is forwarded", "IPV4", closed("input", ""), linkN1, outward, outwardGoes},
		{"output is not met by what is forwarded", "IPV4", closed("output", ""), linkN1, outward, outwardGoes},
		{"input", "IPV4", filter("input", 0, drop(source("eq", podN1))), linkN1, ping, filtered},
		{"input that drops all else", "IPV4", closed("input", "{name: r, action: accept, match: ["+source("eq", podN1)+
			"]}"), linkN1, ping, "deliver"},
		{"output does not keep what comes", "IPV4", closed("output", ""), linkN1, ping, "deliver"},
		{"prerouting is met by what is for the gateway", "IPV4", filter("prerouting", 0, drop(source("eq", podN1))),
			linkN1, ping, filtered},

		{"accept", "IPV4", closed("forward", "{name: r, action: accept, match: []}"), linkN1, outward, outwardGoes},
		{"accept ends its chain only", "IPV4", filter("forward", 0, "{name: r, action: accept, match: []}, "+
			strings.Replace(drop(""), "name: r", "name: s", 1)) + ", " +
			strings.Replace(filter("forward", 1, drop("")), "name: c", "name: d", 1), linkN1, outward, filtered},
		{"what follows accept in its chain does not run", "IPV4",
			filter("forward", 0, "{name: r, action: accept, match: []}, "+strings.Replace(drop(""), "name: r",
				"name: s", 1)), linkN1, outward, outwardGoes},
		{"reject", "IPV4", filter("forward", 0, "{name: r, action: reject, match: []}"), linkN1, outward,
			"drop rejected"},
		{"reject at input", "IPV4", filter("input", 0, "{name: r, action: reject, match: []}"), linkN1, ping,
			"drop rejected"},
		{"notrack", "IPV4", filter("prerouting", -300, "{name: r, action: notrack, match: []}"), linkN1,
			udp(podN1, "10.70.9.9", 7, 80), podN1 + " > 10.70.9.9 untracked"},
		{"a mark and one that is taken back", "IPV4",
			filter("forward", 0,
				`{name: r, action: ctmark, value: "9", match: []}, {name: s, action: metamarkfromctmark, match: []}`),
			linkN1, outward, outwardGoes},
		{"MSS as the route allows", "IPV4",
			filter("forward", 0, `{name: r, action: tcpmssclamp, value: "0", match: [{op: eq, proto: {value: tcp}}]}`),
			linkN1, syn, outwardGoes + " mss 1300"},
		{"MSS without a value", "IPV4",
			filter("forward", 0, "{name: r, action: tcpmssclamp, match: [{op: eq, proto: {value: tcp}}]}"), linkN1, syn,
			outwardGoes + " mss 1300"},
		{"MSS", "IPV4", filter("forward", 0,
			`{name: r, action: tcpmssclamp, value: "1000", match: [{op: eq, proto: {value: tcp}}]}`), linkN1, syn,
			outwardGoes + " mss 1000"},
		{"rules without names and counters", "IPV4", filter("forward", 0, "{action: accept, counter: false, match: ["+
			source("eq", podN2)+"]}, {action: drop, counter: false, match: []}"), linkN1, outward, filtered},

		{"neq of another address", "IPV4", filter("forward", 0, drop(source("neq", podN2))), linkN1, outward, filtered},
		{"neq of this address", "IPV4", filter("forward", 0, drop(source("neq", podN1))), linkN1, outward, outwardGoes},
		{"a CIDR", "IPV4", filter("forward", 0, drop(source("eq", "10.244.0.0/24"))), linkN1, outward, filtered},
		{"a CIDR with bits of a host never matches", "IPV4", filter("forward", 0, drop(source("eq", "10.244.0.8/24"))),
			linkN1, outward, outwardGoes},
		{"neq of a CIDR", "IPV4", filter("forward", 0, drop(source("neq", "10.244.0.0/24"))), linkN1, outward,
			outwardGoes},
		{"a range of addresses", "IPV4", filter("forward", 0, drop(source("eq", "10.244.0.7-10.244.0.9"))), linkN1,
			outward, filtered},
		{"neq of a range of addresses", "IPV4", filter("forward", 0, drop(source("neq", "10.244.0.7-10.244.0.9"))),
			linkN1, outward, outwardGoes},
		{"a port", "IPV4", filter("forward", 0, drop(port("eq", "80"))), linkN1, outward, filtered},
		{"neq of a port", "IPV4", filter("forward", 0, drop(port("neq", "80"))), linkN1, outward, outwardGoes},
		{"a range of ports", "IPV4", filter("forward", 0, drop(port("eq", "79-81"))), linkN1, outward, filtered},
		{"a range of ports whatever op says", "IPV4", filter("forward", 0, drop(port("neq", "79-81"))), linkN1,
			outward, filtered},
		{"a protocol whatever op says", "IPV4", filter("forward", 0, drop("{op: neq, proto: {value: udp}}")), linkN1,
			outward, filtered},
		{"two matches are both asked for", "IPV4",
			filter("forward", 0, drop(source("eq", podN1)+", "+port("eq", "81"))), linkN1, outward, outwardGoes},
		{"neq of two fields is each by itself", "IPV4",
			filter("forward", 0,
				drop(`{op: neq, ip: {value: "`+podN2+`", position: src}, port: {value: "80", position: dst}}`)), linkN1,
			outward, outwardGoes},
		{"the tunnel", "IPV4", filter("forward", 0, drop(device("eq", "liqo-tunnel", "in"))), nat.Tunnel,
			inward, filtered},
		{"any tunnel", "IPV4", filter("forward", 0, drop(device("eq", "liqo-tunnel*", "out"))), linkN1,
			outward, filtered},
		{"a device that is not there", "IPV4", filter("forward", 0, drop(device("eq", "eth0", "out"))), linkN1, outward,
			outwardGoes},
		{"neq of a device that is not there", "IPV4", filter("forward", 0, drop(device("neq", "eth0", "out"))), linkN1,
			outward, filtered},

		{"dnat to an address", "IPV4", translate("prerouting", -101, "{name: r, natType: dnat, to: "+podN2+", match: ["+
			destination("eq", podN1)+"]}"), nat.Tunnel, inward, remotePodHere + " > " + podN2},
		{"dnat to a CIDR", "IPV4", translate("prerouting", -101, "{name: r, natType: dnat, to: 10.244.1.0/29, match: ["+
			destination("eq", "10.244.0.8/29")+"]}"), nat.Tunnel,
			udp(remotePod, "10.244.0.10", 7, 80), remotePodHere + " > " + podN2},
		{"dnat to a range does nothing", "IPV4", translate("prerouting", -101,
			`{name: r, natType: dnat, to: "10.244.1.2-10.244.1.3", match: [`+destination("eq", podN1)+"]}"), nat.Tunnel,
			inward, inwardGoes},
		{"snat to an address", "IPV4", translate("postrouting", 99, "{name: r, natType: snat, to: 10.70.5.5, match: ["+
			source("eq", podN1)+"]}"), linkN1, outward, "10.70.5.5 > " + remotePod},
		{"snat to a CIDR", "IPV4", translate("postrouting", 99, "{name: r, natType: snat, to: 10.70.5.0/24, match: ["+
			source("eq", "10.244.0.0/24")+"]}"), linkN1, outward, "10.70.5.8 > " + remotePod},
		{"masquerade", "IPV4", translate("postrouting", 99, "{name: r, natType: masquerade, match: ["+source("eq",
			podN1)+"]}"), linkN1, outward, ownTunnelAddress + " > " + remotePod},
	} {
		t.Run(tt.name, func(t *testing.T) {
			o := object(t, strings.NewReplacer("FAMILY", tt.family, "CHAINS", tt.chains).Replace(schemaText))
			if got, _ := outcomeWith(append(loadCapture(t, captures[0]), o)...); len(got.faults) > 0 ||
				!got.verdicts[o.Key()] {
				t.Fatalf("%v", got.faults)
			}
			if got := fate(t, capturedEngine(t, gatewayOf("cluster-b"), o), tt.in, tt.packet); got != tt.want {
				t.Errorf("%s, want %s", got, tt.want)
			}
		})
	}

	for _, tt := range []struct {
		name, chains string
		goes         bool
	}{
		{"nothing", "", true},
		{"drop", filter("output", 0, drop(source("eq", ownAddress))), false},
		{"drop of others", filter("output", 0, drop(source("neq", ownAddress))), true},
		{"reject", filter("output", 0, "{name: r, action: reject, match: []}"), false},
		{"accept where all else is dropped", closed("output", "{name: r, action: accept, match: ["+destination("eq",
			podN1)+"]}"), true},
		{"all is dropped", closed("output", ""), false},
		{"to a node", filter("output", 0, drop(device("neq", "liqo-tunnel", "out"))), false},
		{"to the tunnel", filter("output", 0, drop(device("eq", "liqo-tunnel", "out"))), true},
		{"Liqo's notrack", filter("output", -300,
			`{name: r, action: notrack, match: [{op: eq, proto: {value: udp}, port: {value: "6091", position: dst}}]}`),
			true},
		{"marks", filter("output", 0,
			`{name: r, action: ctmark, value: "1", match: []}, {name: s, action: metamarkfromctmark, match: []}`),
			true},
		{"MSS", filter("output", 0,
			`{name: r, action: tcpmssclamp, value: "0", match: [{op: eq, proto: {value: tcp}}]}`), true},
		{"postrouting", filter("postrouting", 0, drop(source("eq", ownAddress))), false},
		{"forward and input are not for it", filter("forward", 0, drop("")) + ", " + strings.Replace(filter("input", 0,
			drop("")), "name: c", "name: d", 1), true},
	} {
		t.Run("what the gateway makes: "+tt.name, func(t *testing.T) {
			o := object(t, strings.NewReplacer("FAMILY", "IPV4", "CHAINS", tt.chains).Replace(schemaText))
			if got, _ := outcomeWith(append(loadCapture(t, captures[0]), o)...); len(got.faults) > 0 ||
				!got.verdicts[o.Key()] {
				t.Fatalf("%v", got.faults)
			}
			if got := capturedEngine(t, gatewayOf("cluster-b"), o).LetsOut(pong.Bytes(), linkN1); got != tt.goes {
				t.Errorf("the packet passes: %v", got)
			}
		})
	}
}
