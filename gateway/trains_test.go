package gateway

import (
	"bytes"
	"errors"
	"net"
	"net/netip"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sirupsen/logrus"
	"github.com/sirupsen/logrus/hooks/test"

	"culvert/gateway/config"
	"culvert/gateway/config/configtest"
	"culvert/gateway/health"
	"culvert/geneve/genevetest"
	"culvert/geneve/udp"
	"culvert/integration/need"
	"culvert/nat/nattest"
)

// A relay forwards WireGuard between two gateways. It can drop the trains of the first one.
type relay struct {
	socket *udp.Socket
	server netip.AddrPort
	lossy  atomic.Bool
	drop   atomic.Int64  // initiations of the first that are still to be lost
	trains atomic.Uint64 // that came from the first
	wg     sync.WaitGroup
}

func newRelay(t *testing.T, server netip.AddrPort) *relay {
	t.Helper()
	s, err := udp.Listen("udp4", netip.MustParseAddrPort("127.0.0.1:0"), udp.Options{})
	need.NoError(t, err)
	r := &relay{socket: s, server: server}
	r.wg.Go(func() { r.run(t) })
	t.Cleanup(func() {
		s.Close()
		r.wg.Wait()
	})
	return r
}

func (r *relay) run(t *testing.T) {
	sender := r.socket.NewSender()
	m := []udp.Message{{Buffer: make([]byte, udp.BufferSize)}}
	var client netip.AddrPort
	for {
		if _, err := r.socket.Receive(m); err != nil {
			return
		}
		train := udp.Train{Destination: r.server, SegmentSize: m[0].SegmentSize, Parts: [][]byte{m[0].Data}}
		if m[0].Source == r.server {
			train.Destination = client
		} else {
			client = m[0].Source
			if m[0].Data[0] == 1 && r.drop.Add(-1) >= 0 {
				continue
			}
			if m[0].SegmentSize > 0 && len(m[0].Data) > m[0].SegmentSize {
				r.trains.Add(1)
				if r.lossy.Load() {
					continue
				}
			}
		}
		if _, err := sender.Send([]udp.Train{train}); err != nil && !errors.Is(err, net.ErrClosed) {
			t.Errorf("relay: %v", err)
		}
	}
}

// A lossyPair is a pair whose time stands still, with a relay in between. The test sets rome's
// clock and reads its log.
type lossyPair struct {
	pair
	t     *testing.T
	relay *relay
	now   atomic.Int64
	log   *test.Hook
}

func newLossyPair(t *testing.T) *lossyPair {
	t.Helper()
	rc := configtest.Cluster("rome", "milan", config.Client, "10.61.0.0/16", "10.71.0.0/16")
	mc := configtest.Cluster("milan", "rome", config.Server, "10.62.0.0/16", "10.72.0.0/16")
	rc.WireGuard.PeerPublicKey = mc.WireGuard.PrivateKey.Public()
	mc.WireGuard.PeerPublicKey = rc.WireGuard.PrivateKey.Public()
	p := &lossyPair{t: t}
	p.now.Store(int64(time.Hour))
	p.milan = start(t, mc, 22)
	p.relay = newRelay(t, netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), p.milan.wg.Port()))
	st := p.relay.socket.Stats()
	need.Offloads(t, st.GSO && st.GRO)
	rc.WireGuard.Endpoint = p.relay.socket.LocalAddr().String()
	log, hook := test.NewNullLogger()
	p.log = hook
	p.rome = open(t, rc, 12, log, func() time.Duration { return time.Duration(p.now.Load()) })
	t.Cleanup(p.rome.close)
	return p
}

// meet exchanges packets several times, so that everything queued before has been answered. The
// packets are too long for a train with a probe.
func (p *lossyPair) meet() {
	p.t.Helper()
	for range 3 {
		p.rome.nodes[0].Send(udpPacket("10.0.1.5", "10.61.1.7", make([]byte, 200)))
		until(p.t, p.milan.nodes[0], 4000)
		p.milan.nodes[0].Send(udpPacket("10.0.1.7", "10.62.1.5", make([]byte, 200)))
		until(p.t, p.rome.nodes[0], 4000)
	}
}

// until ignores what is left of lost trains, up to a packet from the given port.
func until(t *testing.T, n *genevetest.Node, port uint16) nattest.View {
	t.Helper()
	for {
		v, err := nattest.Check(n.Receive())
		need.NoError(t, err)
		if v.SourcePort == port {
			return v
		}
	}
}

// second lets a second pass for rome.
func (p *lossyPair) second() {
	p.t.Helper()
	p.now.Add(int64(time.Second))
	p.rome.monitor.ProbeTrains(time.Duration(p.now.Load()))
	p.rome.monitor.Look(time.Duration(p.now.Load()))
	p.meet()
}

// bulk sends a super-frame from one cluster to the other, which must arrive.
func bulk(t *testing.T, from, to *genevetest.Node, port uint16, source, destination string) {
	t.Helper()
	payload := nattest.Payload(50000, uint32(port))
	from.Send(bulkPacket(port, source, destination, payload))
	var got []byte
	for len(got) < len(payload) {
		got = append(got, until(t, to, port).Payload...)
	}
	if !bytes.Equal(got, payload) {
		t.Error("other bytes")
	}
}

func bulkPacket(port uint16, source, destination string, payload []byte) []byte {
	return nattest.IP{Source: source, Destination: destination, DF: true, Body: nattest.TCP{
		SourcePort: port, DestinationPort: 2, Seq: 1000, Ack: 1, Flags: nattest.ACK, Payload: payload,
		Partial: true}}.Bytes()
}

// said counts how often rome has logged a cause for a peer or node.
func (p *lossyPair) said(cause *health.Cause, of string) (n int) {
	for _, e := range p.log.AllEntries() {
		if e.Data["cause"] == cause.Name && (e.Data["peer"] == of || e.Data["node"] == of) &&
			e.Level == logrus.WarnLevel {
			n++
		}
	}
	return n
}

// TestPeerLosesTrains: if the path to the peer loses trains, bulk traffic flows after a few
// seconds, and in trains again once the path is repaired.
func TestPeerLosesTrains(t *testing.T) {
	p := newLossyPair(t)
	p.meet()
	bulk(t, p.rome.nodes[0], p.milan.nodes[0], 11, "10.0.1.5", "10.61.1.7")
	if p.relay.trains.Load() == 0 {
		t.Fatal("bulk traffic without a train")
	}
	p.second() // all is well
	p.second()
	if !p.rome.wg.Stats().Trains {
		t.Fatal("trains are lost without a loss")
	}

	p.relay.lossy.Store(true)
	for seconds := 0; p.rome.wg.Stats().Trains; seconds++ {
		// normally 6; a probe that is sent in two parts arrives, and then all seems well until the
		// next train
		if seconds == 30 {
			t.Fatal("the loss is not noticed")
		}
		before := p.relay.trains.Load()
		p.rome.nodes[0].Send(bulkPacket(1, "10.0.1.5", "10.61.1.7", nattest.Payload(2*1300, 2)))
		for deadline := time.Now().Add(genevetest.Timeout); p.relay.trains.Load() == before; runtime.Gosched() {
			if time.Now().After(deadline) {
				t.Fatal("no train was lost")
			}
		}
		p.second()
	}
	trains := p.relay.trains.Load()
	bulk(t, p.rome.nodes[0], p.milan.nodes[0], 12, "10.0.1.5", "10.61.1.7")
	if n := p.relay.trains.Load() - trains; n != 0 {
		t.Errorf("%d trains while they are lost", n)
	}
	if n := p.said(health.PeerTrains, "milan"); n != 1 || p.rome.wg.Stats().LostTrains != 1 {
		t.Errorf("%d warnings, %d losses counted; want 1, 1", n, p.rome.wg.Stats().LostTrains)
	}

	for range 60 { // probed again, in vain
		p.second()
	}
	if n := p.relay.trains.Load() - trains; n != 1 || p.rome.wg.Stats().Trains {
		t.Errorf("%d trains in a minute, want one probe; lost: %v", n, !p.rome.wg.Stats().Trains)
	}
	p.relay.lossy.Store(false)
	for range 61 {
		p.second()
	}
	if !p.rome.wg.Stats().Trains {
		t.Fatal("trains are off for good")
	}
	trains = p.relay.trains.Load()
	bulk(t, p.rome.nodes[0], p.milan.nodes[0], 13, "10.0.1.5", "10.61.1.7")
	if p.relay.trains.Load() == trains {
		t.Error("bulk traffic without a train")
	}
	if n := p.said(health.PeerTrains, "milan"); n != 1 {
		t.Errorf("%d warnings, want 1", n)
	}
}

// TestNodeLosesTrains is the same for a node, with its log lines and statistics.
func TestNodeLosesTrains(t *testing.T) {
	p := newLossyPair(t)
	p.meet()
	node := p.rome.nodes[0]
	node.LoseTrains(true)
	port := uint16(p.rome.links().ByName["rome-1"])
	for seconds := 0; ; seconds++ {
		if s, _ := p.rome.endpoint.TunnelStats(port); !s.Train {
			break
		}
		if seconds == 6 {
			t.Fatal("the loss is not noticed")
		}
		// A train to the node, most of which is lost.
		p.milan.nodes[0].Send(bulkPacket(1, "10.0.1.7", "10.62.1.5", nattest.Payload(50000, 2)))
		p.second()
	}
	bulk(t, p.milan.nodes[0], node, 2, "10.0.1.7", "10.62.1.5")
	if n := p.said(health.NodeTrains, "rome-1"); n != 1 {
		t.Errorf("%d warnings, want 1", n)
	}
	if s, _ := p.rome.endpoint.TunnelStats(port); s.LostTrains != 1 {
		t.Errorf("%+v", s)
	}
	if s, _ := p.rome.endpoint.TunnelStats(uint16(p.rome.links().ByName["rome-2"])); !s.Train {
		t.Errorf("the other node: %+v", s)
	}
}
