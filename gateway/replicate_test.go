package gateway

import (
	"context"
	"io"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/sirupsen/logrus"

	"culvert/gateway/config"
	"culvert/gateway/config/configtest"
	"culvert/gateway/role"
	"culvert/integration/need"
	"culvert/nat"
	"culvert/nat/nattest"
	"culvert/nat/rules"
)

// replicas are two gateways of rome, of which one forwards, and milan.
type replicas struct {
	t      testing.TB
	milan  *cluster
	pods   [2]*cluster
	listen [2]netip.AddrPort // for the other replica
}

func newReplicas(t testing.TB, edit ...func(*config.Config)) *replicas {
	r := &replicas{t: t}
	rc := configtest.Cluster("rome", "milan", config.Client, "10.61.0.0/16", "10.71.0.0/16")
	mc := configtest.Cluster("milan", "rome", config.Server, "10.62.0.0/16", "10.72.0.0/16")
	rc.WireGuard.PeerPublicKey, mc.WireGuard.PeerPublicKey = mc.WireGuard.PrivateKey.Public(),
		rc.WireGuard.PrivateKey.Public()
	rc.Elected = true
	rc.Addresses = []config.AddressMapping{{External: rules.PairOf(netip.MustParseAddr("10.70.0.9")),
		Internal: rules.PairOf(netip.MustParseAddr("192.0.2.10")), Via: "rome-1"}}
	for _, f := range edit {
		f(rc)
		f(mc)
	}
	r.milan = start(t, mc, 20)
	rc.WireGuard.Endpoint = netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), r.milan.wg.Port()).String()
	for i := range r.pods {
		r.begin(i, rc)
	}
	return r
}

// begin starts a replica with a network of its own.
func (r *replicas) begin(i int, like *config.Config) {
	r.t.Helper()
	c := *like
	c.Geneve.Nodes = slices.Clone(like.Geneve.Nodes)
	log := logrus.New()
	log.SetOutput(io.Discard)
	cl := open(r.t, &c, byte(10+i), log, nil)
	if _, err := cl.Replicate(ReplicateOptions{Name: string(rune('a' + i)), Listen: "127.0.0.1:0"}); err != nil {
		r.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- cl.Run(ctx) }()
	stopped := false
	cl.stop = func() {
		if !stopped {
			stopped = true
			cancel()
			if err := <-done; err != nil {
				r.t.Error(err)
			}
		}
	}
	r.t.Cleanup(cl.stop)
	r.pods[i] = cl
	r.listen[i] = netip.MustParseAddrPort(cl.replicating.listener.Addr().String())
}

// lead makes a replica the active one, and waits until it and milan have a session: before, milan
// would send in one that nobody has.
func (r *replicas) lead(cl *cluster) {
	r.t.Helper()
	began := time.Now()
	cl.Become(role.Active)
	for _, end := range []*cluster{cl, r.milan} {
		waitFor(r.t, "a session", func() bool {
			s, err := end.wg.PeerStats()
			return err == nil && s.LastHandshake.After(began)
		})
	}
}

// send sends a packet from a node of one cluster and returns what arrives at a node of the other.
func (r *replicas) send(from, to *cluster, node, at int, p nattest.IP, source, destination string) nattest.View {
	r.t.Helper()
	from.nodes[node].Send(p.Bytes())
	return expect(r.t, to.nodes[at], source, destination)
}

// TestStandbyTakesOver: when the active gateway is gone, connections of each kind go on by the
// standby, with their ports, although only the far end speaks, and although nothing was sent in
// them for longer than they live.
func TestStandbyTakesOver(t *testing.T) {
	r := newReplicas(t)
	active, standby := r.pods[0], r.pods[1]
	active.Become(role.Active)
	datagram := func(source, destination string, from, to uint16) nattest.IP {
		return nattest.IP{Source: source, Destination: destination, Body: nattest.UDP{SourcePort: from,
			DestinationPort: to, Payload: []byte("x")}}
	}
	segment := func(source, destination string, from, to uint16, flags uint8) nattest.IP {
		return nattest.IP{Source: source, Destination: destination, DF: true, Body: nattest.TCP{SourcePort: from,
			DestinationPort: to, Seq: 1000, Ack: 1, Flags: flags, Window: 1000}}
	}
	// Two clients behind U, with one source port.
	first := r.send(active, r.milan, 0, 0, datagram("172.18.0.10", "10.61.1.5", 4000, 53), "10.72.0.0",
		"10.0.1.5").SourcePort
	standby.replicating.Follow(r.listen[0])
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	need.NoError(t, standby.replicating.Whole(ctx))
	// After the copy: the second one, one over TCP, and one from milan to the mapped host.
	second := r.send(active, r.milan, 1, 0, datagram("172.18.0.10", "10.61.1.5", 4000, 53), "10.72.0.0",
		"10.0.1.5").SourcePort
	third := r.send(active, r.milan, 0, 0, segment("172.18.0.10", "10.61.1.5", 4000, 80, nattest.SYN), "10.72.0.0",
		"10.0.1.5").SourcePort
	r.send(r.milan, active, 0, 0, datagram("10.0.1.5", "10.72.0.9", 5000, 69), "10.61.1.5", "192.0.2.10")
	// between pods: needs no record
	r.send(active, r.milan, 0, 0, datagram("10.0.1.5", "10.61.1.5", 1, 2), "10.62.1.5", "10.0.1.5")
	need.NoError(t, active.replicating.Flush(ctx))
	if first == second {
		t.Fatalf("both have port %d", first)
	}
	if n := len(standby.listed()); n != 4 {
		t.Fatalf("%d connections at the standby, want 4: %v", n, standby.listed())
	}
	if f := active.inspect.Status().Replication.Followers; len(f) != 1 || f[0].NoFullCopy || f[0].Entries != 4 {
		t.Errorf("status: %+v", f)
	}
	if sent := standby.inspect.Status().Sockets; sent["geneve"].SentBytes != 0 || sent["wireguard"].SentBytes != 0 {
		t.Errorf("a standby has sent something: %+v", sent)
	}

	active.stop()
	r.lead(standby)
	for _, answer := range []struct {
		node int
		port uint16
		p    nattest.IP
	}{
		{0, 4000, datagram("10.0.1.5", "10.72.0.0", 53, first)},
		{1, 4000, datagram("10.0.1.5", "10.72.0.0", 53, second)},
		{0, 4000, segment("10.0.1.5", "10.72.0.0", 80, third, nattest.SYN|nattest.ACK)},
	} {
		if v := r.send(r.milan, standby, 0, answer.node, answer.p, "10.61.1.5", "172.18.0.10"); v.DestinationPort !=
			answer.port {
			t.Errorf("an answer came to port %d, want %d", v.DestinationPort, answer.port)
		}
	}
	if v := r.send(standby, r.milan, 0, 0, datagram("192.0.2.10", "10.61.1.5", 69, 5000), "10.72.0.9",
		"10.0.1.5"); v.DestinationPort != 5000 {
		t.Errorf("the mapped host's answer came to port %d", v.DestinationPort)
	}
	if s := standby.engine.Stats(); s.Created != 0 {
		t.Errorf("%d connections were made anew", s.Created)
	}
	// A client that goes on in mid-stream without a record has the port that the former gateway's
	// key gave it.
	if active.life.PortKey() != standby.life.PortKey() {
		t.Error("the successor chooses ports by another key")
	}
}

// listed returns the connections of a gateway.
func (cl *cluster) listed() (list []nat.ConnInfo) {
	for at, more := nat.Cursor(0), true; more; {
		list, at, more = cl.engine.Connections(at, &nat.ConnFilter{}, 0, list)
	}
	return list
}

// TestStandbyGivesBack: an active gateway that was restarted has its table back from the standby
// before it forwards.
func TestStandbyGivesBack(t *testing.T) {
	r := newReplicas(t)
	active, standby := r.pods[0], r.pods[1]
	like := active.config()
	active.Become(role.Active)
	port := r.send(active, r.milan, 0, 0, nattest.IP{Source: "172.18.0.10", Destination: "10.61.1.5",
		Body: nattest.UDP{SourcePort: 4000, DestinationPort: 53}},
		"10.72.0.0", "10.0.1.5").SourcePort
	standby.replicating.Follow(r.listen[0])
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	need.NoError(t, standby.replicating.Whole(ctx))
	key := active.life.PortKey()
	active.stop()
	r.begin(0, like)
	again := r.pods[0]
	again.replicating.Follow(r.listen[1])
	need.NoError(t, again.replicating.Whole(ctx))
	r.lead(again)
	v := r.send(r.milan, again, 0, 0, nattest.IP{Source: "10.0.1.5", Destination: "10.72.0.0",
		Body: nattest.UDP{SourcePort: 53, DestinationPort: port}}, "10.61.1.5", "172.18.0.10")
	if v.DestinationPort != 4000 || again.life.PortKey() != key {
		t.Errorf("port %d, same key %t", v.DestinationPort, again.life.PortKey() == key)
	}
}
