package nat_test

import (
	"testing"
	"time"

	"culvert/nat"
	"culvert/nat/nattest"
)

// Timers: nf_conntrack's, refreshed by packets, in virtual time.
func TestTimeouts(t *testing.T) {
	steps := func(kinds ...string) []string { return kinds }
	tests := []struct {
		name  string
		steps []string
		want  time.Duration
	}{
		{"udp", steps("udp"), 120 * time.Second},
		{"udp both ways", steps("udp", "udp back"), 120 * time.Second},
		{"icmp", steps("echo"), 60 * time.Second},
		{"gre", steps("gre"), 600 * time.Second},
		{"syn", steps("S"), 120 * time.Second},
		{"syn, syn-ack", steps("S", "<SA"), 60 * time.Second},
		{"established", steps("S", "<SA", "A"), 120 * time.Hour},
		{"mid-stream, one side", steps("A"), 120 * time.Second},
		{"mid-stream", steps("A", "<A"), 120 * time.Hour},
		{"fin", steps("S", "<SA", "A", "FA"), 120 * time.Second},
		{"fin acknowledged", steps("S", "<SA", "A", "FA", "<A"), time.Hour},
		{"both fins", steps("S", "<SA", "A", "FA", "<FA"), 30 * time.Second},
		{"closed", steps("S", "<SA", "A", "FA", "<FA", "A"), 120 * time.Second},
		{"reset", steps("S", "<SA", "A", "R"), 10 * time.Second},
		{"refused", steps("S", "<RA"), 10 * time.Second},
		{"sctp", steps("sctp init"), 30 * time.Second},
		{"sctp both ways", steps("sctp init", "<sctp init ack", "sctp cookie echo"), 120 * time.Hour},
		{"sctp aborted", steps("sctp init", "<sctp init ack", "sctp cookie echo", "<sctp abort"), 10 * time.Second},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			e := engine(t)
			d := dialogue{e: e}
			now := start
			for _, step := range test.steps {
				now = now.Add(time.Second)
				d.send(t, step, now)
			}
			for e.Sweep(now.Add(test.want-time.Second)) == false {
			}
			if n := e.Stats().Connections; n != 1 {
				t.Fatalf("gone a second before %v", test.want)
			}
			// The wheel turns in seconds.
			for e.Sweep(now.Add(test.want+2*time.Second)) == false {
			}
			if n := e.Stats().Connections; n != 0 {
				t.Fatalf("there two seconds after %v", test.want)
			}
		})
	}
}

// A dialogue sends TCP segments with right numbers between 10.200.1.5 and 10.71.3.9, and other
// things by name.
type dialogue struct {
	e   *nat.Engine
	seq [2]uint32
}

func (d *dialogue) send(t *testing.T, step string, now nat.Time) {
	t.Helper()
	back := step[0] == '<'
	if back {
		step = step[1:]
	}
	p := nattest.IP{Source: "10.200.1.5", Destination: "10.71.3.9"}
	in, me := node1, 0
	if back {
		p.Source, p.Destination, in, me = "10.200.3.9", "10.200.1.5", nat.Tunnel, 1
	}
	ports := func(a, b uint16) (uint16, uint16) {
		if back {
			return b, a
		}
		return a, b
	}
	switch step {
	case "udp":
		p.Body = nattest.UDP{SourcePort: 1, DestinationPort: 2}
	case "udp back":
		p.Source, p.Destination, in = "10.200.3.9", "10.200.1.5", nat.Tunnel
		p.Body = nattest.UDP{SourcePort: 2, DestinationPort: 1}
	case "echo":
		p.Body = nattest.ICMP{Type: 8, Rest: 1 << 16}
	case "gre":
		p.Body = nattest.Raw{Protocol: 47, Payload: make([]byte, 8)}
	case "sctp init", "sctp init ack", "sctp cookie echo", "sctp abort":
		s := nattest.SCTP{Tag: uint32(100 + me)}
		s.SourcePort, s.DestinationPort = ports(5, 6)
		kind := map[string]byte{"sctp init": 1, "sctp init ack": 2, "sctp cookie echo": 10, "sctp abort": 6}[step]
		s.Chunks = []byte{kind, 0, 0, 8, 0, 0, 0, byte(101 - me)} // the initiate tag is what the other side will send
		if kind == 1 {
			s.Tag = 0
		}
		p.Body = s
	default:
		s := nattest.TCP{Seq: 1000*uint32(me+1) + d.seq[me], Ack: 1000*uint32(2-me) + d.seq[1-me], Window: 1000}
		s.SourcePort, s.DestinationPort = ports(40000, 80)
		for _, f := range step {
			switch f {
			case 'S':
				s.Flags |= nattest.SYN
				d.seq[me]++
			case 'A':
				s.Flags |= nattest.ACK
			case 'F':
				s.Flags |= nattest.FIN
				d.seq[me]++
			case 'R':
				s.Flags |= nattest.RST
			}
		}
		if s.Flags&nattest.ACK == 0 {
			s.Ack = 0
		}
		p.Body = s
	}
	forwarded(t, d.e, in, p.Bytes(), now)
}
