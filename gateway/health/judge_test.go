package health

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"
)

var (
	milan   = netip.MustParseAddrPort("192.0.2.7:51840")
	pod     = netip.MustParseAddr("10.0.1.5")
	far     = netip.MustParseAddr("10.61.1.5")
	gateway = netip.MustParseAddr("10.80.0.4")
)

// healthy is a client with two nodes at its start.
func healthy() *Observation {
	node := func(name string, vni uint32, underlay, address string) Node {
		return Node{Name: name, VNI: vni, Underlay: netip.MustParseAddr(underlay),
			Address: netip.MustParseAddr(address),
			Encap:   "vxlan", ARP: true}
	}
	return &Observation{
		Peer: Peer{Name: "milan", Role: "client", Configured: milan.String(), Endpoint: milan, ListenPort: 51840,
			PublicKey: "KEY="},
		Nodes:   []Node{node("rome-1", 1, "172.18.0.2", "10.80.0.2"), node("rome-2", 2, "172.18.0.3", "10.80.0.3")},
		Gateway: gateway, Port: 6091,
		Remote: netip.MustParsePrefix("10.61.0.0/16").Contains,
	}
}

// play shows a Judge one observation a second, each prepared by change, and returns what the Judge
// says with its second, and the causes.
func play(seconds int, change func(second int, o *Observation)) (said []string, causes []*Cause) {
	j, o := NewJudge(), healthy()
	for second := range seconds {
		o.Signs, o.Drops, o.Strangers = nil, nil, nil
		change(second, o)
		for _, f := range j.Look(time.Duration(second)*time.Second, o) {
			said = append(said, fmt.Sprintf("%d %s %s %s: %s", second, f.Cause.Level, f.Kind, f.Of, f.Text))
			causes = append(causes, f.Cause)
		}
	}
	return said, causes
}

// TestStories: each event is reported once, with its reason and remedy.
func TestStories(t *testing.T) {
	unsaid := map[*Cause]bool{}
	for _, c := range Causes() {
		unsaid[c] = true
	}
	for _, tt := range stories {
		t.Run(tt.name, func(t *testing.T) {
			said, causes := play(tt.seconds, tt.change)
			for _, c := range causes {
				delete(unsaid, c)
			}
			if len(said) != len(tt.want) {
				t.Fatalf("said %q\nwant %q", said, tt.want)
			}
			for i, line := range said {
				if !strings.HasPrefix(line, tt.want[i]) {
					t.Errorf("said %q\nwant %q", line, tt.want[i])
				}
				if strings.ContainsAny(line, "{}\n") {
					t.Errorf("a blank in %q", line)
				}
			}
		})
	}
	for c := range unsaid {
		t.Errorf("no story has %s", c.Name)
	}
}

// TestStrangersAreFewLines: a sender with many addresses fills neither the log nor memory.
func TestStrangersAreFewLines(t *testing.T) {
	j, o := NewJudge(), healthy()
	lines := 0
	for second := range 600 {
		for i := range 4 {
			from := netip.AddrFrom4([4]byte{203, byte(second / 2 >> 8), byte(second / 2), byte(i)})
			o.Strangers = append(o.Strangers, Stranger{StrangerWithNoise, from})
		}
		lines += len(j.Look(time.Duration(second)*time.Second, o))
		o.Strangers = o.Strangers[:0]
	}
	if most := strangerBurst + 60; lines > most || lines < strangerBurst {
		t.Errorf("%d lines in 10 minutes, want at most %d", lines, most)
	}
	if len(j.notices.all) != maxNotices {
		t.Errorf("%d are remembered", len(j.notices.all))
	}
}

// TestFindings: findings are the peer's state, each node's, and faults that last.
func TestFindings(t *testing.T) {
	j, o := NewJudge(), healthy()
	o.Peer.Handshake = 1
	o.Nodes[1].Received = 1
	for second := range 40 {
		o.Nodes[0].Asked = second
		o.Drops = []Drop{{Reason: "no-route", Node: "rome-2", Source: pod, Destination: far,
			Total: uint64(min(second, 20))}}
		j.Look(time.Duration(second)*time.Second, o)
	}
	names := func(at time.Duration) (names []string) {
		for _, f := range j.Findings(at) {
			names = append(names, f.Of+" "+f.Cause.Name)
		}
		return names
	}
	want := []string{"milan handshake-made", "rome-1 node-no-arp", "rome-2 node-heard", "rome-2 no-route-remote"}
	if got := names(40 * time.Second); !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	if got := names(2 * time.Minute); !slices.Equal(got, want[:3]) {
		t.Errorf("two minutes later %q", got)
	}
	if peer, nodes := j.Doubtful(); peer || !slices.Equal(nodes, []string{"rome-1"}) {
		t.Errorf("doubtful: peer %v, nodes %v", peer, nodes)
	}
}

// TestFindingsEnd: a finding ends at the event that disproves it, not some time later.
func TestFindingsEnd(t *testing.T) {
	found := func(j *Judge, second int, c *Cause) bool {
		return slices.ContainsFunc(j.Findings(time.Duration(second)*time.Second), func(f Finding) bool {
			return f.Cause == c
		})
	}
	for _, tt := range []struct {
		name   string
		cause  *Cause
		change func(second int, o *Observation)
		ends   int // second of the event
	}{
		{"a handshake from who had another key", StrangerMAC1, func(s int, o *Observation) {
			if s < 20 {
				o.Strangers = []Stranger{{StrangerWithoutKey, milan.Addr()}}
			} else {
				o.Peer.Handshake, o.Peer.ReceivedBytes = 1, uint64(s)
			}
			server(o)
		}, 20},
		{"a handshake from who was not the peer", StrangerData, func(s int, o *Observation) {
			if s < 20 {
				o.Strangers = []Stranger{{StrangerWithData, milan.Addr()}}
			} else {
				o.Peer.Handshake, o.Peer.ReceivedBytes = 1, uint64(s)
			}
			server(o)
		}, 20},
		{"a packet of a node that had sent none", OneWay, func(s int, o *Observation) {
			n := &o.Nodes[0]
			n.Answered, n.Known, n.Received, n.Sent = true, true, uint64(min(s, 5)), uint64(s)
			if s >= 30 {
				n.Received = 6
			}
		}, 30},
		{"nothing more goes to a node that had sent none", OneWay, func(s int, o *Observation) {
			n := &o.Nodes[0]
			n.Answered, n.Known, n.Received, n.Sent = true, true, uint64(min(s, 5)), uint64(min(s, 20))
		}, 40},
		{"nothing more goes to a node that never sent any", NoReturn, func(s int, o *Observation) {
			n := &o.Nodes[0]
			n.Answered, n.Sent = true, uint64(min(s, 20))
		}, 40},
	} {
		t.Run(tt.name, func(t *testing.T) {
			j, o := NewJudge(), healthy()
			for second := range tt.ends + 1 {
				o.Signs, o.Drops, o.Strangers = nil, nil, nil
				tt.change(second, o)
				j.Look(time.Duration(second)*time.Second, o)
				if second == tt.ends-1 && !found(j, second, tt.cause) {
					t.Errorf("%s is not found before", tt.cause.Name)
				}
			}
			if found(j, tt.ends, tt.cause) {
				t.Errorf("%s is still found", tt.cause.Name)
			}
		})
	}
	t.Run("a handshake from elsewhere", func(t *testing.T) { // it proves nothing about an unknown sender
		j, o := NewJudge(), healthy()
		o.Strangers = []Stranger{{StrangerWithoutKey, netip.MustParseAddr("203.0.113.5")}}
		j.Look(0, o)
		j.Look(time.Second, o)
		o.Strangers, o.Peer.Handshake = nil, 1
		if j.Look(2*time.Second, o); !found(j, 2, StrangerMAC1) {
			t.Error("it has ended")
		}
	})
}

// BenchmarkLook looks at 5,000 healthy nodes.
func BenchmarkLook(b *testing.B) {
	j, o := NewJudge(), healthy()
	for i := range 5000 {
		n := o.Nodes[0]
		n.Name, n.Received, n.Sent, n.Answered, n.Known = fmt.Sprintf("node-%d.example.internal", i), 1, 1, true, true
		o.Nodes = append(o.Nodes, n)
	}
	b.ReportAllocs()
	for now := time.Duration(0); b.Loop(); now += time.Second {
		j.Look(now, o)
	}
}
