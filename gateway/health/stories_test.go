package health

import (
	"net/netip"
	"time"
)

// calls makes the peer start a handshake every 5 seconds.
func calls(second int, o *Observation) { o.Peer.SentHandshakes = uint64(second/5 + 1) }

// server makes the gateway the server.
func server(o *Observation) {
	o.Peer.Role, o.Peer.Configured = "server", ""
	if o.Peer.Endpoint = milan; o.Peer.Handshake == 0 {
		o.Peer.Endpoint = netip.AddrPort{}
	}
}

// passing lets packets and pings pass through the tunnel.
func passing(second int, o *Observation) {
	o.Peer.Handshake, o.Peer.ReceivedBytes, o.Peer.ReceivedPackets = 1, uint64(second)*100, uint64(second)
	o.Peer.Pings = Pings{RTT: time.Millisecond, Requests: 32, Sent: uint64(second)}
}

// drops drops packets at these seconds.
func drops(d Drop, seconds ...int) func(int, *Observation) {
	return func(second int, o *Observation) {
		for i, s := range seconds {
			if s == second {
				d.Total = uint64(i+1) * 6
				o.Drops = []Drop{d}
			}
		}
	}
}

// signs makes a sign come each second.
func signs(s Sign) func(int, *Observation) {
	return func(second int, o *Observation) { o.Signs = []Sign{s} }
}

// flood makes the first node send more than the gateway takes, until a second.
func flood(second, until int, o *Observation) {
	n := uint64(min(second, until)) * 2000
	o.Nodes[0].Received = n
	o.Sockets = []Socket{{Name: "geneve", Port: 6091, Received: n, Overflows: n * 4}}
}

func strangers(kind StrangerKind) func(int, *Observation) {
	return func(second int, o *Observation) {
		o.Strangers = []Stranger{{kind, netip.MustParseAddr("203.0.113.5")}}
	}
}

func arp(kind SignKind, a string) Sign {
	return Sign{Kind: kind, Node: "rome-1", VNI: 1, Address: netip.MustParseAddr(a)}
}

// full uses all of one P from second 5 until a second, and loses datagrams.
func full(c CPU, s, until int, o *Observation) {
	at := min(max(s-5, 0), until-5)
	o.CPU = c
	o.CPU.Used = time.Duration(at)*980*time.Millisecond + time.Duration(s)*10*time.Millisecond
	n := uint64(s) * 1000
	o.Sockets = []Socket{{Name: "geneve", From: "nodes", Port: 6091, Received: n, Bytes: n * 125_000,
		Overflows: uint64(at) * 10}, {Name: "wireguard", From: "the peer", Port: 51840, Received: n}}
}

// stories contain everything that a Judge can say, each with the events that lead to it.
var stories = []struct {
	name    string
	seconds int
	change  func(second int, o *Observation)
	want    []string
}{
	{"the tunnel comes up and stays", 400, func(s int, o *Observation) {
		o.Peer.SentHandshakes = uint64(1 + s/120)
		if s > 0 {
			o.Peer.Handshake, o.Peer.ReceivedBytes = int64(1+s/120), uint64(s)
		}
	}, []string{"1 info peer milan: handshake made with 192.0.2.7:51840"}},
	{"the client's peer never answers", 60, calls, []string{
		"12 warning peer milan: no handshake answer from 192.0.2.7:51840 for 12 s (3 sent, 0 received): is UDP 51840 open there, is the peer running, and is wireguard.peerPublicKey right here and there? A peer with another key says so in its log"}},
	{"the peer answers late", 30, func(s int, o *Observation) {
		if calls(s, o); s >= 20 {
			o.Peer.Handshake, o.Peer.ReceivedBytes = 1, 100
		}
	}, []string{"12 warning peer milan: no handshake answer",
		"20 info peer milan: handshake made with 192.0.2.7:51840"}},
	{"the peer is lost and comes back", 200, func(s int, o *Observation) {
		o.Peer.SentHandshakes, o.Peer.Handshake, o.Peer.ReceivedBytes = 1, 1, uint64(min(s, 50))
		if s >= 65 {
			o.Peer.SentHandshakes = uint64(min(s-55, 25)) / 5
		}
		if s >= 190 {
			o.Peer.Handshake = 2
		}
	}, []string{"0 info peer milan: handshake made",
		"77 warning peer milan: the peer at 192.0.2.7:51840 has not answered for 12 s (3 handshakes sent, 0 answered): is it running",
		"190 info peer milan: handshake made with 192.0.2.7:51840: the tunnel is back after 2 min"}},
	{"nothing listens at the endpoint", 60, func(s int, o *Observation) { calls(s, o); o.Peer.Knock = KnockRefused },
		[]string{
			"3 warning peer milan: nothing listens at 192.0.2.7:51840, says its machine (1 handshakes sent, 0 answered): start the peer, or make the port"}},
	{"nobody is at the endpoint", 60, func(s int, o *Observation) { calls(s, o); o.Peer.Knock = KnockNobody }, []string{
		"3 warning peer milan: nobody has the address of 192.0.2.7:51840"}},
	{"the endpoint has no route", 60, func(s int, o *Observation) { calls(s, o); o.Peer.Knock = KnockNoRoute },
		[]string{
			"3 warning peer milan: this machine has no route to 192.0.2.7:51840"}},
	{"a name with an address of each family, both called in vain in turn", 100, func(s int, o *Observation) {
		calls(s, o)
		if o.Peer.Endpoint, o.Peer.Knock = milan, KnockSilent; s/10%2 == 1 {
			o.Peer.Endpoint, o.Peer.Knock = netip.MustParseAddrPort("[2001:db8::7]:51840"), KnockNoRoute
		}
	}, []string{"10 warning peer milan: this machine has no route to [2001:db8::7]:51840",
		"20 warning peer milan: no handshake answer from 192.0.2.7:51840"}},
	{"a firewall here", 60, func(s int, o *Observation) { calls(s, o); o.Peer.Knock = KnockForbidden }, []string{
		"3 warning peer milan: this machine may not send to 192.0.2.7:51840"}},
	{"a name that nobody knows", 60, func(s int, o *Observation) {
		o.Peer.Endpoint, o.Peer.Configured, o.Peer.NameError = netip.AddrPort{}, "gw.milan:51840", "no such host"
	},
		[]string{
			"0 warning peer milan: wireguard.endpoint gw.milan:51840 has no address (no such host): correct the name"}},
	{"the peer's answers are another's", 60, func(s int, o *Observation) {
		calls(s, o)
		o.Peer.ReceivedAnswers = uint64(
			s / 5)
	}, []string{
		"12 warning peer milan: the peer at 192.0.2.7:51840 answers, 2 times in 12 s, but with another key"}},
	{"the peer moves", 60, func(s int, o *Observation) {
		o.Peer.Handshake, o.Peer.ReceivedBytes = 1, uint64(s)
		if s >= 30 {
			o.Peer.Endpoint = netip.MustParseAddrPort("192.0.2.8:1024")
		}
	}, []string{"0 info", "30 info peer milan: the peer has moved from 192.0.2.7:51840 to 192.0.2.8:1024"}},
	{"some pings are lost", 100, func(s int, o *Observation) {
		passing(s, o)
		o.Peer.Pings.Lost = 8
	}, []string{"0 info",
		"42 warning peer milan: 8 of the last 32 requests through the tunnel to 192.0.2.7:51840 were lost: look for a full or faulty link"}},
	{"few pings are lost", 100, func(s int, o *Observation) {
		passing(s, o)
		o.Peer.Pings.Lost = 6
	}, []string{"0 info"}},
	{"nobody pings any more", 100, func(s int, o *Observation) {
		passing(s, o)
		o.Peer.Pings.Lost, o.Peer.Pings.Sent = 31, 31
	}, []string{"0 info"}},
	{"handshakes are made, and nothing else passes", 60, func(s int, o *Observation) {
		o.Peer.Handshake, o.Peer.ReceivedBytes = int64(1+s/15), uint64(s/15)
		o.Peer.Pings = Pings{Requests: min(s, 32), Lost: min(s, 32), Sent: uint64(s)}
	}, []string{"0 info", "12 warning peer milan: the peer at 192.0.2.7:51840 has not answered for 12 s",
		"15 warning peer milan: handshakes with 192.0.2.7:51840 are made, but nothing has come through the tunnel for 15 s: does a firewall"}},
	{"a peer that answers no pings", 60, func(s int, o *Observation) {
		passing(s, o)
		o.Peer.Pings = Pings{Requests: min(s, 32), Lost: min(s, 32), Sent: uint64(s)}
	}, []string{"0 info"}},
	{"a peer that answers no pings is gone", 60, func(s int, o *Observation) {
		passing(min(s, 30), o)
		o.Peer.Pings = Pings{Requests: min(s, 32), Lost: min(s, 32), Sent: uint64(s)}
	}, []string{"0 info",
		"42 warning peer milan: the peer at 192.0.2.7:51840 has not answered for 12 s (0 handshakes sent, 0 answered): is it running"}},
	{"a peer that is sent nothing", 60, func(s int, o *Observation) {
		passing(min(s, 30), o)
	}, []string{"0 info"}},
	{"a peer that does not hear", 60, func(s int, o *Observation) {
		passing(s, o)
		if o.Peer.Pings.Missed = max(s-20, 0); s >= 40 {
			o.Peer.Pings.Missed = 0
		}
	}, []string{"0 info",
		"28 warning peer milan: the peer at 192.0.2.7:51840 sends, and has answered none of 8 requests for 8 s: is UDP 51840 open there?",
		"40 info peer milan: handshake made with 192.0.2.7:51840: the tunnel is back after 20 s"}},
	{"a firewall here, in mid-session", 40, func(s int, o *Observation) {
		passing(s, o)
		if o.Peer.Pings.Missed = max(s-20, 0); s >= 25 {
			o.Peer.Knock = KnockForbidden
		}
	}, []string{"0 info", "25 warning peer milan: this machine may not send to 192.0.2.7:51840"}},
	{"a peer that answered pings is gone", 60, func(s int, o *Observation) {
		passing(min(s, 30), o)
		o.Peer.Pings.Missed = max(s-30, 0)
		o.Peer.SentHandshakes = uint64(1 + max(s-40, 0)/5)
	}, []string{"0 info",
		"42 warning peer milan: the peer at 192.0.2.7:51840 has not answered for 12 s (0 handshakes sent, 0 answered)"}},
	{"one whose machine says that it is gone", 60, func(s int, o *Observation) {
		passing(min(s, 30), o)
		if o.Peer.Pings.Missed = max(s-30, 0); s > 34 {
			o.Peer.Knock = KnockRefused
		}
	}, []string{"0 info", "35 warning peer milan: nothing listens at 192.0.2.7:51840"}},
	{"the tunnel loses all but handshakes for a while", 90, func(s int, o *Observation) {
		passing(min(s, 30), o)
		o.Peer.Pings.Missed, o.Peer.Pings.Sent = max(s-30, 0), uint64(s)
		o.Peer.Handshake += int64(s / 45)
		o.Peer.ReceivedBytes += uint64(s / 45)
		if s >= 70 {
			passing(s, o)
			o.Peer.Handshake += int64(s / 45)
		}
	}, []string{"0 info", "42 warning peer milan: the peer at 192.0.2.7:51840 has not answered",
		"45 warning peer milan: handshakes with 192.0.2.7:51840 are made, but nothing has come through the tunnel for 15 s: does a firewall",
		"70 info peer milan: handshake made with 192.0.2.7:51840: the tunnel is back after 40 s"}},
	{"nobody calls the server", 60, func(_ int, o *Observation) { server(o) }, []string{
		"12 warning peer milan: no handshake from the peer for 12 s (0 received on UDP 51840): is the peer running, with role client (one side is the server"}},
	{"nobody can call a server that knows no peer", 100, func(s int, o *Observation) {
		server(o)
		o.Peer.Unknown = s < 30 || s >= 60
	}, []string{"42 warning peer milan: no handshake from the peer for 12 s (0 received"}},
	// WireGuard does not know the peer yet
	{"the peer calls a client whose name for it has no address", 60, func(s int, o *Observation) {
		o.Peer.Endpoint, o.Peer.NameError = netip.AddrPort{}, "no such host"
		o.Peer.ReceivedHandshakes, o.Peer.Initiator = uint64(s/5), milan.Addr()
	}, []string{"0 warning peer milan: wireguard.endpoint 192.0.2.7:51840 has no address (no such host)"}},
	{"the client at last calls the server", 60, func(s int, o *Observation) {
		if s >= 50 {
			o.Peer.Handshake, o.Peer.ReceivedBytes = 1, uint64(s)
		}
		server(o)
	}, []string{"12 warning", "50 info peer milan: handshake made with 192.0.2.7:51840"}},
	{"the server's answers do not arrive", 60, func(s int, o *Observation) {
		server(o)
		o.Peer.ReceivedHandshakes, o.Peer.SentAnswers, o.Peer.ReceivedBytes = uint64(s/5), uint64(s/5), uint64(s/5)*148
		o.Peer.Initiator = milan.Addr()
	}, []string{"12 warning peer milan: the peer begins handshakes (2 received), is answered, and completes none"}},
	{"the client falls silent", 400, func(s int, o *Observation) {
		o.Peer.Handshake, o.Peer.ReceivedBytes = 1, uint64(min(s, 100))
		server(o)
	}, []string{"0 info", "285 info peer milan: nothing from the peer at 192.0.2.7:51840 for 3 min"}},
	{"the server's peer is gone, says its machine", 60, func(s int, o *Observation) {
		passing(min(s, 30), o)
		if o.Peer.Pings.Missed = max(s-30, 0); s > 34 {
			o.Peer.Knock = KnockRefused
		}
		server(o)
	}, []string{"0 info",
		"35 warning peer milan: nothing listens at 192.0.2.7:51840, says its machine (0 handshakes sent, 0 answered): start the peer; it has called from there"}},
	{"another peer is configured", 60, func(s int, o *Observation) {
		if o.Peer.Handshake = 1; s >= 20 {
			calls(s-20, o)
			o.Peer.Handshake = 0
		}
	}, []string{"0 info", "32 warning peer milan: no handshake answer"}},

	{"a node's first packet", 60, func(s int, o *Observation) { o.Nodes[0].Received = uint64(s / 30) }, []string{
		"30 info node rome-1: first packet from rome-1 (172.18.0.2)"}},
	{"a node never answers", 60, func(s int, o *Observation) { o.Nodes[0].Asked = s }, []string{
		"12 warning node rome-1: rome-1 (172.18.0.2) never answered ARP (12 asked): is its link up, with VNI 1, the address 10.80.0.2 and the gateway's underlay address as remote, and is UDP 6091 open here and there?"}},
	{"a node floods, and another cannot be heard", 60, func(s int, o *Observation) {
		flood(s, 60, o)
		o.Nodes[1].Asked, o.Nodes[1].Known, o.Nodes[1].Silence = s, true, time.Duration(s)*time.Second
	}, []string{"1 info node rome-1: first packet",
		"2 warning node rome-1: 8000 of 10000 datagrams to the nodes' port were lost in a second: the receive buffer of UDP 6091 was full; rome-1 sent most: find who floods there"}},
	{"a node floods, and another is gone", 60, func(s int, o *Observation) {
		flood(s, 30, o)
		o.Nodes[1].Asked, o.Nodes[1].Known, o.Nodes[1].Silence = s, true, time.Duration(s)*time.Second
	}, []string{"1 info node rome-1: first packet", "2 warning node rome-1: 8000 of 10000 datagrams",
		"43 warning node rome-2: rome-2 (172.18.0.3) has answered no ARP for 43 s (43 asked)"}},
	{"strangers flood the nodes' port", 20, func(s int, o *Observation) {
		o.Sockets = []Socket{{Name: "geneve", Port: 6091, Received: uint64(s), Overflows: uint64(s) * 4000}}
	},
		[]string{
			"2 warning address strangers: 4000 of 4001 datagrams to the nodes' port were lost in a second: the receive buffer of UDP 6091 was full; strangers sent most"}},
	{"too much comes from outside", 20, func(s int, o *Observation) {
		o.Sockets = []Socket{{Name: "wireguard", Port: 51840, Received: uint64(s) * 3000,
			Overflows: uint64(uint32(s*1000 - 500))}}
	},
		[]string{
			"2 warning peer milan: 1000 of 4000 datagrams from the peer or strangers were lost in a second: the receive buffer of UDP 51840 was full"}},
	{"a little more comes than fits", 60, func(s int, o *Observation) {
		o.Sockets = []Socket{{Name: "geneve", Port: 6091, Received: uint64(s) * 10000, Overflows: uint64(s) * 2000}}
	}, nil},
	{"a node starts late", 60, func(s int, o *Observation) {
		o.Nodes[0].Asked = s
		if s > 40 {
			o.Nodes[0].Asked, o.Nodes[0].Known, o.Nodes[0].Answered = 0, true, true
		}
	}, []string{"12 warning node rome-1", "41 info node rome-1: rome-1 (172.18.0.2) is back after 41 s"}},
	{"nothing listens at a node", 60, func(s int, o *Observation) {
		o.Nodes[0].Asked, o.Nodes[0].Knock = s,
			KnockRefused
	}, []string{
		"3 warning node rome-1: nothing listens on UDP 6091 of rome-1 (172.18.0.2), says that machine"}},
	{"nobody has a node's underlay address", 60, func(s int, o *Observation) {
		o.Nodes[0].Asked, o.Nodes[0].Knock = s,
			KnockNobody
	}, []string{
		"3 warning node rome-1: nobody has the underlay address 172.18.0.2 of rome-1"}},
	{"no route to a node", 60, func(s int, o *Observation) { o.Nodes[0].Asked, o.Nodes[0].Knock = s, KnockNoRoute },
		[]string{
			"3 warning node rome-1: this machine has no route to rome-1 (172.18.0.2)"}},
	{"a node falls silent and comes back", 90, func(s int, o *Observation) {
		n := &o.Nodes[0]
		if n.Received, n.Known, n.Answered = 1, true, true; s >= 40 {
			n.Asked, n.Silence = s-39, time.Duration(s-10)*time.Second
		}
		if s >= 80 {
			n.Asked, n.Silence = 0, 0
		}
	}, []string{"0 info", "42 warning node rome-1: rome-1 (172.18.0.2) has answered no ARP for 3 s (3 asked)",
		"80 info node rome-1: rome-1 (172.18.0.2) is back after 41 s"}},
	{"a node's program ends and starts again", 90, func(s int, o *Observation) {
		n := &o.Nodes[0]
		if n.Received, n.Known, n.Answered = 1, true, true; s >= 40 {
			n.Asked, n.Silence, n.Knock = s-39, time.Duration(s-10)*time.Second, KnockRefused
		}
		if s >= 80 {
			n.Asked, n.Silence, n.Knock = 0, 0, KnockSilent
		}
	}, []string{"0 info", "42 warning node rome-1: nothing listens on UDP 6091 of rome-1",
		"80 info node rome-1: rome-1 (172.18.0.2) is back after 41 s"}},
	{"a node of IPv6 alone falls silent", 60, func(s int, o *Observation) {
		n := &o.Nodes[0]
		if n.Address, n.Received, n.Known, n.Answered = netip.MustParseAddr("fd80::2"), 1, true, true; s >= 20 {
			n.Asked, n.Silence = s-19, time.Duration(s-10)*time.Second
		}
	}, []string{"0 info",
		"22 warning node rome-1: rome-1 (172.18.0.2) has answered no neighbour discovery for 3 s (3 asked)"}},
	{"a node's link loses frames", 100, func(s int, o *Observation) {
		n := &o.Nodes[0]
		n.Received, n.Known, n.Answered, n.Requests, n.Lost = 1, true, true, 32, 8
	}, []string{"0 info",
		"42 warning node rome-1: 8 of the last 32 requests by ARP to rome-1 (172.18.0.2) were lost: look for"}},
	{"a node that forwards nothing", 60, func(s int, o *Observation) {
		o.Nodes[0].Answered, o.Nodes[0].Sent = true,
			uint64(s)
	}, []string{
		"5 warning node rome-1: rome-1 answers ARP, but has sent no packet back for 5 that were sent to it: does it forward (sysctl net.ipv4.ip_forward=1, net.ipv6.conf.all.forwarding=1), does it route the remote CIDRs via 10.80.0.4"}},
	{"a node that sends and does not hear", 60, func(s int, o *Observation) {
		n := &o.Nodes[0]
		n.Answered, n.Known, n.Received, n.Silence = true, true, uint64(s+1), time.Second
		if s >= 20 {
			n.Asked = min(s-19, 5)
		}
		if s >= 40 {
			n.Asked, n.Silence = 0, 0
		}
	}, []string{"0 info",
		"27 warning node rome-1: rome-1 (172.18.0.2) sends, and answers no ARP for 10.80.0.2 (5 asked): does its firewall", "40 info node rome-1: rome-1 (172.18.0.2) is back after 19 s"}},
	{"a node that looks elsewhere from now on", 60, func(s int, o *Observation) {
		n := &o.Nodes[0]
		n.Answered, n.Known, n.Received, n.Sent = true, true, uint64(min(s, 20)), uint64(s)
		if s > 20 {
			o.Signs = []Sign{arp(SignTarget, "10.80.0.9")}
		}
	}, []string{"1 info", "24 warning node rome-1: rome-1 asks for the gateway by 10.80.0.9, which is 10.80.0.4"}},
	{"a node that ceases to send, while others cease to send to it", 700, func(s int, o *Observation) {
		n := &o.Nodes[0]
		n.Answered, n.Known, n.Received, n.Sent = true, true, uint64(min(s, 20)), uint64(min(s, 45))
		if s >= 200 { // too soon for another warning
			n.Sent += uint64(min(s, 220) - 200)
		}
		if s >= 640 {
			n.Sent += uint64(min(s, 660) - 640)
		}
	}, []string{"1 info", "30 warning node rome-1: rome-1 has sent no packet for 10 s, and 10 were sent to it",
		"650 warning node rome-1: rome-1 has sent no packet for 10 s"}},
	{"a node that ceases to send", 60, func(s int, o *Observation) {
		n := &o.Nodes[0]
		n.Answered, n.Known, n.Received, n.Sent = true, true, uint64(min(s, 20)), uint64(min(s, 45))
		if s >= 50 {
			n.Received = 25
		}
	}, []string{"1 info",
		"30 warning node rome-1: rome-1 has sent no packet for 10 s, and 10 were sent to it: if answers are due: does it forward", "50 info node rome-1: rome-1 (172.18.0.2) is back after 30 s"}},
	{"a node whose pings are answered, and whose pods are not heard", 60, func(s int, o *Observation) {
		n := &o.Nodes[0]
		n.Answered, n.Known, n.LocalReceived, n.LocalSent = true, true, uint64(s), uint64(2*s)
		n.Received, n.Sent = n.LocalReceived+uint64(min(s, 20)), n.LocalSent+uint64(s)
	}, []string{"1 info", "30 warning node rome-1: rome-1 has sent no packet for 10 s, and 10 were sent to it"}},
	{"a node that only pings", 60, func(s int, o *Observation) {
		n := &o.Nodes[0]
		n.Answered, n.Known, n.LocalReceived, n.LocalSent, n.Received, n.Sent = true, true, uint64(s), uint64(2*s),
			uint64(s), uint64(2*s)
	}, []string{"1 info"}},
	{"a node without traffic", 60, func(s int, o *Observation) {
		n := &o.Nodes[0]
		n.Answered, n.Known, n.Received, n.Sent = true, true, uint64(min(s, 20)), uint64(min(s, 22))
	}, []string{"1 info"}},
	{"two packets without answer are no fault", 60, func(s int, o *Observation) {
		o.Nodes[0].Answered,
			o.Nodes[0].Sent = true, 2
	}, nil},
	{"a node with another underlay address", 60,
		signs(Sign{Kind: SignUnknownNode, Source: netip.MustParseAddrPort("172.18.0.9:4711"), VNI: 2}), []string{
			"1 warning node rome-2: rome-2 sends from 172.18.0.9, configured 172.18.0.3"}},
	{"a node with another VNI", 60,
		signs(Sign{Kind: SignUnknownNode, Source: netip.MustParseAddrPort("172.18.0.2:4711"), VNI: 2}), []string{
			"1 warning node rome-1: rome-1 (172.18.0.2) sends VNI 2, configured 1"}},
	{"a node with another encapsulation", 60, signs(Sign{Kind: SignEncap, Node: "rome-1"}), []string{
		"1 warning node rome-1: rome-1 (172.18.0.2) sends another encapsulation than vxlan"}},
	{"a node without frames", 60, signs(Sign{Kind: SignInner, Node: "rome-1"}),
		[]string{"1 warning node rome-1: rome-1 (172.18.0.2) sends IP in place of"}},
	{"a node with another address", 60, func(s int, o *Observation) {
		o.Signs = []Sign{arp(SignSender, "10.80.0.7")}
		o.Nodes[0].Asked = s
	}, []string{
		"3 warning node rome-1: rome-1 calls itself 10.80.0.7, configured 10.80.0.2"}},
	{"a node that looks for the gateway elsewhere", 60, signs(arp(SignTarget, "10.80.0.9")), []string{
		"1 warning node rome-1: rome-1 asks for the gateway by 10.80.0.9, which is 10.80.0.4"}},
	{"a node with another address, which has been told ours", 60, func(s int, o *Observation) {
		if o.Nodes[0].Asked = s; s == 1 {
			o.Signs = []Sign{arp(SignSender, "10.80.0.7")}
		}
	}, []string{"3 warning node rome-1: rome-1 calls itself 10.80.0.7"}},
	{"a node with more than one address", 60, func(s int, o *Observation) {
		o.Signs = []Sign{arp(SignSender, "10.0.1.1")}
		o.Nodes[0].Answered = true
	}, nil},
	{"a node that knows others by ARP", 60, func(s int, o *Observation) {
		o.Signs = []Sign{arp(SignTarget, "10.80.0.3")}
		o.Nodes[0].Answered, o.Nodes[0].Received = true, 1
	}, []string{"0 info"}},
	{"a route without via", 60, signs(arp(SignTarget, "10.61.1.5")), []string{
		"1 warning node rome-1: rome-1 asks by ARP for 10.61.1.5, which is behind the gateway: give that node's route a gateway: ip route replace CIDR via 10.80.0.4 dev LINK onlink"}},
	{"a node that is put right", 60, func(s int, o *Observation) {
		if s < 10 {
			o.Signs = []Sign{arp(SignTarget, "10.80.0.9")}
		} else {
			o.Nodes[0].Received = 1
		}
	}, []string{"1 warning", "10 info node rome-1: rome-1 (172.18.0.2) is back after 9 s"}},
	{"a node that is put right, and then not", 60, func(s int, o *Observation) {
		n := &o.Nodes[0]
		n.Answered, n.Known, n.Received, n.Sent = true, true, uint64(max(s-10, 0)), uint64(s)
		switch {
		case s < 10:
			o.Signs = []Sign{arp(SignTarget, "10.61.1.5")}
		case s > 15:
			n.Received = 5
		}
	}, []string{"1 warning node rome-1: rome-1 asks by ARP for 10.61.1.5",
		"11 info node rome-1: rome-1 (172.18.0.2) is back after 10 s",
		"25 warning node rome-1: rome-1 has sent no packet for 10 s"}},
	{"one odd frame is chance", 100, func(s int, o *Observation) {
		if s%50 == 7 {
			o.Signs = []Sign{arp(SignTarget, "10.80.0.9")}
		}
	}, nil},
	{"a node leaves", 60, func(s int, o *Observation) {
		if o.Nodes[0].Asked = s; s > 20 {
			o.Nodes = o.Nodes[:1]
			o.Nodes[0] = healthy().Nodes[1]
		}
	}, []string{"12 warning node rome-1"}},

	{"a path that swallows large packets", 60, func(s int, o *Observation) {
		node := Path{Kind: OfNode, Of: "rome-1", To: netip.MustParseAddr("172.18.0.2"), Size: 1246, Configured: 1340,
			Wire: 1390, Way: "to"}
		peer := Path{Kind: OfPeer, Of: "milan", To: milan.Addr(), Size: 1232, Configured: 1340, Wire: 1400,
			Way: "to or from"}
		switch {
		case s >= 50:
			o.Nodes, o.Paths = healthy().Nodes[1:], nil
		case s >= 40:
			o.Paths = []Path{node}
		case s >= 30:
			o.Paths = nil
		case s >= 20:
			node.Size, node.Way = 1240, "from"
			o.Paths = []Path{peer, node}
		case s >= 10:
			o.Paths = []Path{peer, node}
		}
	}, []string{
		"10 warning peer milan: packets of more than 1232 bytes vanish on the way to or from the peer (192.0.2.7), mtu is 1340; senders are kept to what passes: let IP packets of 1400 bytes pass there, or set mtu: 1232 in both clusters",
		"10 warning node rome-1: packets of more than 1246 bytes vanish on the way to rome-1 (172.18.0.2), mtu is 1340; senders are kept to what passes: let IP packets of 1390 bytes pass there, or set mtu: 1246 in both clusters",
		"20 warning node rome-1: packets of more than 1240 bytes vanish on the way from rome-1",
		"30 info", "30 info", "40 warning node rome-1"}},
	{"trains that are lost, and a node that leaves", 60, func(s int, o *Observation) {
		o.Peer.TrainsLost, o.Nodes = s >= 10 && s < 20, healthy().Nodes
		o.Nodes[0].TrainsLost, o.Nodes[1].TrainsLost = s >= 12 && s < 30, s >= 40
		if s >= 50 {
			o.Nodes = o.Nodes[:1]
		}
	}, []string{
		"10 warning peer milan: UDP_SEGMENT trains do not arrive at the peer (192.0.2.7): it is sent single datagrams, which is slower: update the kernels of both",
		"12 warning node rome-1: UDP_SEGMENT trains do not arrive at rome-1 (172.18.0.2): it is sent single datagrams, which is slower: update the node's kernel",
		"20 info peer milan: milan is sent", "30 info node rome-1: rome-1 is sent", "40 warning node rome-2"}},
	{"one P is too little", 60, func(s int, o *Observation) { full(CPU{Procs: 1, CPUs: 4}, s, 30, o) }, []string{
		"15 warning peer milan: Go code runs on 1 of 4 CPUs and has used 99 % of that for 10 s, while 90 packets from nodes were lost (1 Gb/s came): write cpus: 2, reload, and compare",
		"35 info peer milan: there is CPU time to spare again after 25 s"}},
	{"one P is enough for what comes in a burst", 60, func(s int, o *Observation) {
		full(CPU{Procs: 1, CPUs: 4}, s,
			14, o)
	}, nil},
	{"one P is used up, and nothing is lost", 60, func(s int, o *Observation) {
		full(CPU{Procs: 1, CPUs: 4}, s, 60, o)
		o.Sockets[0].Overflows, o.Sockets[1].Waits = 0, s%3 > 0
	}, nil},
	{"one P is used up, and the kernel counts nothing that is lost", 20, func(s int, o *Observation) {
		full(CPU{Procs: 1, CPUs: 4}, s, 60, o)
		o.Sockets[0].Overflows, o.Sockets[1].Waits = 0, true
	},
		[]string{
			"15 warning peer milan: Go code runs on 1 of 4 CPUs and has used 99 % of that for 10 s, while packets from the peer waited all the time (0 Gb/s came)"}},
	{"one P is used up, and bursts overflow a socket now and then", 60, func(s int, o *Observation) {
		full(CPU{Procs: 1, CPUs: 4}, s, 60, o)
		o.Sockets[0].Overflows = uint64(s) / 3 * 50
	}, nil},
	{"all CPUs are too little", 20, func(s int, o *Observation) { full(CPU{Procs: 1, CPUs: 1}, s, 60, o) }, []string{
		"15 warning peer milan: Go code runs on all 1 CPUs that it may use, and has used 99 % of that for 10 s, while 90 packets from nodes were lost (1 Gb/s came): find who sends so much"}},
	{"a quota is too little", 20, func(s int, o *Observation) {
		full(CPU{Procs: 1, CPUs: 2, Quota: 0.5}, s, 60, o)
		o.CPU.Used /= 2
	},
		[]string{
			"15 warning peer milan: Go code has used 99 % of the control group's quota of 0.5 CPUs for 10 s, while 90 packets"}},
	{"another number of Ps", 60, func(s int, o *Observation) {
		full(CPU{Procs: 1 + min(s/12, 1), CPUs: 4}, s, 60, o)
	}, nil},
	{"one packet dropped is chance", 60, drops(Drop{Reason: "bad-source", Node: "rome-1", Source: pod, Owner: "rome-2"},
		5, 30, 55), nil},
	{"a pod of another node", 700, drops(Drop{Reason: "bad-source", Node: "rome-1", Source: pod, Owner: "rome-2"}, 5, 6,
		8, 30, 31, 606, 607), []string{
		"6 warning node rome-1: 12 packets of rome-1 dropped as bad-source: 10.0.1.5 is an address of rome-2",
		"607 warning node rome-1: 12 packets"}},
	{"a source of the remote cluster", 60, drops(Drop{Reason: "bad-source", Node: "rome-1", Source: far, Remote: true},
		1, 2),
		[]string{
			"2 warning node rome-1: 12 packets of rome-1 dropped as bad-source: 10.61.1.5 is an address that this gateway gives"}},
	{"a source that is none", 60,
		drops(Drop{Reason: "bad-source", Node: "rome-1", Source: netip.MustParseAddr("224.0.0.1")}, 1, 2),
		[]string{"2 warning node rome-1: 12 packets of rome-1 dropped as bad-source: 224.0.0.1 can be no"}},
	{"two clients", 60, drops(Drop{Reason: "bad-source", Inbound: true, Source: netip.MustParseAddr("169.254.18.2"),
		Tunnel: true}, 1), []string{
		"1 warning peer milan: the peer uses our tunnel address 169.254.18.2: it has the role client, too"}},
	{"a peer with other CIDRs", 60, drops(Drop{Reason: "bad-source", Inbound: true, Source: pod}, 1, 2), []string{
		"2 warning peer milan: 12 packets of the peer dropped as bad-source: 10.0.1.5 is in no cidr of network.remote"}},
	{"unknown sources are off", 60, drops(Drop{Reason: "unknown-source", Node: "rome-1", Source: pod}, 1, 2),
		[]string{"2 warning node rome-1: 12 packets of rome-1 dropped as unknown-source"}},
	{"a node's route leads nowhere", 60, drops(Drop{Reason: "no-route", Node: "rome-1", Source: pod, Destination: far},
		1, 2), []string{
		"2 warning node rome-1: 12 packets of rome-1 to 10.61.1.5 dropped as no-route: no remote CIDR has it"}},
	{"a pod without a node", 60, drops(Drop{Reason: "no-route", Inbound: true, Source: far, Destination: pod,
		Local: true}, 1, 2), []string{
		"2 warning peer milan: 12 packets to 10.0.1.5 dropped as no-route: no node has it"}},
	{"a peer that means others", 60, drops(Drop{Reason: "no-route", Inbound: true, Source: far,
		Destination: netip.MustParseAddr("10.9.1.5")}, 1, 2), []string{
		"2 warning peer milan: 12 packets of the peer to 10.9.1.5 dropped as no-route: it is in no CIDR of network.local"}},
	{"the peer sends to a node", 60, drops(Drop{Reason: "to-node", Inbound: true, Source: far, Destination: pod}, 1, 2),
		[]string{
			"2 warning peer milan: 12 packets of the peer to 10.0.1.5 dropped as to-node: it is a node's own address"}},
	{"an address that stands for nothing", 60, drops(Drop{Reason: "no-mapping", Inbound: true, Source: far,
		Destination: pod}, 1, 2),
		[]string{"2 warning peer milan: 12 packets of the peer to 10.0.1.5 dropped as no-mapping"}},
	{"a destination that is not exported", 60, drops(Drop{Reason: "not-admitted", Inbound: true, Source: far,
		Destination: pod}, 1, 2),
		[]string{"2 info peer milan: 12 packets of the peer to 10.0.1.5 dropped as not-admitted: it is not exported"}},
	{"a server that goes on", 60, drops(Drop{Reason: "not-admitted", Node: "rome-1", Source: pod, Destination: far}, 1,
		2), nil},
	{"a rule", 60, drops(Drop{Reason: "filtered", Node: "rome-1", Source: pod, Destination: far, Rule: "no-ping"}, 1,
		2), []string{
		"2 info node rome-1: rule no-ping refuses packets of rome-1, the last from 10.0.1.5 to 10.61.1.5 (filtered, 12)"}},
	{"a rule that has no name is Kubernetes'", 60, drops(Drop{Reason: "filtered", Source: pod}, 1, 2), nil},
	{"a service without backends", 60, drops(Drop{Reason: "no-backend", Inbound: true, Source: far, Destination: pod},
		1, 2), []string{"2 warning peer milan: 12 packets to 10.0.1.5 dropped as no-backend"}},
	{"a clamp that cuts TCP to pieces", 30, func(_ int, o *Observation) { o.MSS, o.Fits = 216, 1300 }, []string{
		"1 info peer milan: mssClamp cuts TCP into segments of 216 bytes, where 1300 fit: set mssClamp: auto"}},
	{"a clamp that may be meant", 30, func(_ int, o *Observation) { o.MSS, o.Fits = 1200, 1300 }, nil},
	{"a full table", 60, drops(Drop{Reason: "table-full", Node: "rome-1", Source: pod}, 1, 2),
		[]string{"2 warning node rome-1: 12 packets dropped as table-full"}},
	{"no ports left", 60, drops(Drop{Reason: "port-share", Node: "rome-1", Source: pod, Destination: far}, 1, 2),
		[]string{"2 warning node rome-1: 12 packets dropped as port-share: no source port is left towards 10.61.1.5"}},
	{"malformed packets", 60, drops(Drop{Reason: "malformed", Node: "rome-1", Source: pod}, 1, 2),
		[]string{"2 warning node rome-1: 12 packets of rome-1 dropped as malformed"}},
	{"what routers drop", 60, drops(Drop{Reason: "ttl-exceeded", Node: "rome-1", Source: pod}, 1, 2, 3), nil},

	{"handshakes for another key", 60, strangers(StrangerWithoutKey), []string{
		"1 warning address 203.0.113.5: 203.0.113.5 begins handshakes with another public key than ours: if it is the peer, set its wireguard.peerPublicKey to ours: KEY="}},
	{"data of a stranger", 60, strangers(StrangerWithData),
		[]string{"1 warning address 203.0.113.5: 203.0.113.5 sends data messages"}},
	{"a flood of handshakes", 60, strangers(StrangerTooFast),
		[]string{"1 warning address 203.0.113.5: 203.0.113.5 sends more handshakes"}},
	{"noise", 60, strangers(StrangerWithNoise),
		[]string{"1 info address 203.0.113.5: 203.0.113.5 sends to UDP 51840 what is not WireGuard"}},
	{"a peer with another key", 30, func(s int, o *Observation) {
		server(o)
		o.Peer.Initiator = netip.Addr{}
		if s%5 == 2 {
			o.Peer.ReceivedHandshakes++
			o.Peer.Initiator = milan.Addr()
		}
	},
		[]string{
			"7 warning address 192.0.2.7: 192.0.2.7 knows our public key, and has another one than wireguard.peerPublicKey"}},
	{"a peer whose clock went back", 60, func(s int, o *Observation) {
		server(o)
		o.Peer.Handshake, o.Peer.Endpoint = 1, milan
		o.Peer.Initiator, o.Peer.Outdated = netip.Addr{}, time.Time{}
		if s%5 == 2 {
			o.Peer.ReceivedHandshakes++
			o.Peer.Initiator = milan.Addr()
		}
		if s%10 == 2 || s%10 == 8 { // WireGuard looks at every other one a moment later
			o.Peer.Outdated = time.Date(2026, 2, 3, 4, 5, s, 0, time.UTC)
		}
		if s >= 20 { // packets for the peer go to where it was
			o.Peer.SentHandshakes, o.Peer.Knock = uint64(s/5), KnockRefused
		}
		if s >= 50 { // somebody corrects the clock
			o.Peer.Handshake, o.Peer.Outdated, o.Peer.Knock, o.Peer.SentAnswers = 2, time.Time{}, KnockSilent,
				o.Peer.ReceivedHandshakes
		}
	}, []string{"0 info peer milan: handshake made",
		"8 warning peer milan: the peer's clock went back: its handshakes are of 2026-02-03 04:05:08 UTC",
		"50 info peer milan: handshake made with 192.0.2.7:51840: the tunnel is back after 48 s"}},
	{"a peer whose handshakes are answered a moment later", 60, func(s int, o *Observation) {
		o.Peer.Handshake = 1
		o.Peer.Initiator = netip.Addr{}
		if s%5 == 2 {
			o.Peer.ReceivedHandshakes++
			o.Peer.Initiator = milan.Addr()
		}
		if s%5 == 3 {
			o.Peer.SentAnswers++
		}
	}, []string{"0 info"}},
	{"a stranger among the nodes", 60,
		signs(Sign{Kind: SignUnknownNode, Source: netip.MustParseAddrPort("172.18.0.66:1"), VNI: 66}), []string{
			"1 info address 172.18.0.66: 172.18.0.66 is no node and sends to the port of the nodes, VNI 66"}},
}
