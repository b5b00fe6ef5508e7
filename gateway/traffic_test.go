package gateway

import (
	"fmt"
	"testing"
	"time"

	"culvert/gateway/config"
	"culvert/gateway/control"
	"culvert/geneve/genevetest"
	"culvert/integration/need"
)

// TestStatusMeasures: while packets pass, a status shows the round trip to nodes and peer, losses
// on the way and when the last packet passed; for the peer by pings, or by the connection check if
// that is on.
func TestStatusMeasures(t *testing.T) {
	for _, check := range []bool{false, true} {
		p, client := newControlled(t, func(rome, _ *config.Config) {
			if check {
				rome.ConnectionCheck = config.ConnectionCheck{Port: 12345, Interval: 100 * time.Millisecond,
					Threshold: 5}
			}
		})
		p.rome.nodes[0].Send(udpPacket("10.0.1.5", "10.61.1.7", nil))
		expect(t, p.milan.nodes[0], "10.62.1.5", "10.0.1.7")
		measured := func(l *control.Leg) bool {
			return l.RTTSeconds != nil && *l.RTTSeconds > 0 && *l.RTTSeconds < 1 && l.Requests > 0 &&
				l.RequestsLost == 0
		}
		var s *control.Status // whose values are judged together
		need.Eventually(t, genevetest.Timeout, "both are measured", func() (err error) {
			s, err = client.Status(t.Context())
			if err == nil && !(measured(&s.Tunnel.Leg) && measured(&s.Nodes[0].Leg)) {
				err = fmt.Errorf("tunnel %+v, node %+v", s.Tunnel, s.Nodes[0])
			}
			return err
		})
		// the gateway itself may send to a node
		if s.Tunnel.LastSentSeconds == nil || s.Tunnel.LastReceivedSeconds != nil ||
			s.Nodes[0].LastReceivedSeconds == nil {
			t.Errorf("a packet from a node to the peer: %+v, %+v", s.Tunnel.Leg, s.Nodes[0].Leg)
		}
		if c := s.Tunnel.Check; (c != nil) != check || check && (c.State != "connected" || c.Answered == 0) {
			t.Errorf("check %+v", c)
		}
		if sent := p.rome.wg.Pings().Sent; (sent == 0) != check {
			t.Errorf("%d pings beside the connection check: %v", sent, check)
		}
		p.rome.stop()
		p.milan.stop()
	}
}
