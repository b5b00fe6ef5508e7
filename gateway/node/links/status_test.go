package links

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil/promlint"

	"culvert/gateway/control"
	"culvert/geneve"
)

// TestSeen: status, metrics and health describe each link, and the fault of one that does not
// exist.
func TestSeen(t *testing.T) {
	x := newFar(t, "172.18.0.7", "172.18.0.8")
	x.gateway("172.18.0.7", milan)
	taken := vienna
	taken.Remote = addr("172.18.0.2") // this node's own
	s := start(t, false)
	s.Apply([]Link{milan, taken})
	s.is(t, Carried, Refused)
	route(t, "10.61.0.0/16", milan.Name)
	talk(t, "10.61.0.5")
	var n control.NodeStatus
	eventually(t, "the gateway answers", func() error {
		n = control.NodeStatus{}
		if s.Show(&n); len(n.Links) != 2 || !n.Links[0].Answers || n.Links[0].RTTSeconds == nil {
			return fmt.Errorf("%+v", n.Links)
		}
		return nil
	})
	up, not := n.Links[0], n.Links[1]
	if up.State != "carried" || up.Interface != milan.Name || up.VNI != 1 || up.Underlay != milan.Remote ||
		up.SentPackets == 0 || up.ReceivedPackets == 0 || up.Fault != "" ||
		!slices.Equal(up.Addresses, milan.Address.All()) || !slices.Equal(up.GatewayAddresses, milan.Gateway.All()) {
		t.Errorf("%+v", up)
	}
	if not.State != "refused" || !strings.Contains(not.Fault, "is an address of this node") {
		t.Errorf("%+v", not)
	}
	if fault := s.Fault(); fault != taken.Name+": "+not.Fault {
		t.Error(fault)
	}
	text := s.Metrics()
	if problems, err := promlint.New(strings.NewReader(text)).Lint(); err != nil || len(problems) > 0 {
		t.Errorf("promlint: %v, %v", problems, err)
	}
	for _, want := range []string{`culvert_links{state="carried"} 1`, `culvert_links{state="refused"} 1`,
		`culvert_link_answers{interface="liqo.milan"} 1`,
		fmt.Sprintf(`culvert_link_sent_packets_total{interface="liqo.milan"} %d`, up.SentPackets),
		`culvert_dropped_packets_total{reason="unknown-node"} 0`} {
		if !strings.Contains(text, want+"\n") {
			t.Errorf("no %q in\n%s", want, text)
		}
	}
	s.Apply([]Link{milan})
	s.is(t, Carried)
	if fault := s.Fault(); fault != "" {
		t.Error(fault)
	}

	// A packet for no link is counted.
	stranger := milan
	stranger.Name, stranger.VNI, stranger.Gateway = "liqo.none", 99, geneve.PairOf(addr("10.80.0.9"))
	e := x.gateway("172.18.0.8", stranger)
	eventually(t, "a datagram of a stranger is counted", func() error {
		n = control.NodeStatus{}
		e.AskAll(func() {})
		s.Show(&n)
		for _, d := range n.LinkDrops {
			if d.Reason == "unknown-node" && d.Packets > 0 {
				return nil
			}
		}
		return fmt.Errorf("%+v", n.LinkDrops)
	})
}
