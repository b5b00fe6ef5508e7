package integration

import (
	"bufio"
	"cmp"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"culvert/gateway/exports"
	"culvert/integration/need"
)

// attackEnv says how long TestKubeMulticlusterAttack attacks.
const attackEnv = "CULVERT_ATTACK"

func attackLength() time.Duration {
	d, err := time.ParseDuration(cmp.Or(os.Getenv(attackEnv), "20s"))
	if err != nil {
		panic(attackEnv + ": " + err.Error())
	}
	return d
}

// The ends of a third cluster, which attacks. By its name its EndpointSlices come before others'.
var (
	kubeRomeBari = kubeEnd{"rome", "172.18.0", "10.244.0.0/16", "10.70.0.0/16", "10.244.0.0/16", "10.70.0.0/16",
		"client", "192.0.3.1", 10, "10.81.0.4", 2, 1}
	kubeBari = kubeEnd{"bari", "172.20.0", "10.245.0.0/16", "10.72.0.0/16", "10.75.0.0/16", "10.69.0.0/16",
		"server", "192.0.3.7", 9, "10.80.0.4", 0, 0}
)

// TestKubeMulticlusterAttack: a peer with its key sends through the tunnel whatever it likes, as
// fast as it can. culvert writes nothing outside the namespace that is admitted, no address but
// the peer's, asks the API server no more often than SECURITY.md says, needs bounded memory, and
// another peer's changes do not wait.
func TestKubeMulticlusterAttack(t *testing.T) {
	isolated(t, func(t *testing.T) {
		first, second := newPeeringLabs(t, "--audit-log-maxsize=10000")
		rome, milan := newMulticlusterLab(t, first), newMulticlusterLab(t, second)
		rome.meet(milan.peeringLab)
		milan.meet(rome.peeringLab)
		for _, m := range []*multiclusterLab{rome, milan} {
			m.share("shop")
			m.awaitCondition("Connected", "True")
		}
		milan.apply(shop("web", nil, nil), sliceOf("web", 0, 1, 1), serviceExport("web"))
		own := rome.pod(&kubeNodes[0], 5)
		rome.apply(shop("own", nil, nil), shopSlice("own", own), serviceExport("own"))
		rome.awaitEndpoints("own", "rome "+own)
		rome.awaitEndpoints("web", "milan "+milan.seen(endpointAddress(1)))
		bait := []object{shop("plain", nil, nil)}
		for _, ns := range []string{"kube-system", "default", "other"} {
			dns := shop("kube-dns", nil, nil)
			dns["metadata"].(object)["namespace"] = ns
			bait = append(bait, dns)
		}
		rome.apply(append([]object{namespace("other")}, bait...)...)
		for i, o := range bait {
			bait[i] = mustObject(t)(rome.api.admin.get(o))
		}
		a := newAttacker(t, rome.peeringLab)
		began := time.Now()
		log := &auditTail{file: rome.api.path("audit.log"), requests: map[string]int{}}
		log.read(t)
		clear(log.requests)

		length := attackLength()
		stop, done := make(chan struct{}), make(chan struct{})
		go func() {
			defer close(done)
			phases := a.phases()
			a.attack(stop, min(length/time.Duration(2*len(phases)), 30*time.Second), phases...)
		}()
		var took []time.Duration
		for n := 2; time.Since(began) < length; n++ {
			next := time.Now().Add(2 * time.Second)
			took = append(took, testHonestChange(t, rome, milan, n))
			requireOnlyAdmitted(t, rome, bait)
			log.read(t)
			select {
			case <-time.After(time.Until(next)):
			case <-done:
				t.Fatal("the attacker has ended")
			}
		}
		close(stop)
		<-done
		passed := time.Since(began)
		slices.Sort(took)
		t.Logf("in %v bari has sent %d datagrams and changed %d endpoints (%.0f a minute); %d acknowledgements",
			passed, a.sent, a.changed, float64(a.changed)/passed.Minutes(), a.acknowledged)
		t.Logf("milan's changes are there after %v (half), %v (99 of 100), %v (all) of %d", took[len(took)/2],
			took[len(took)*99/100], took[len(took)-1], len(took))
		if half := took[len(took)/2]; half > followed {
			t.Errorf("half of milan's changes are there after %v, want at most %v", half, followed)
		}
		if slowest := took[len(took)*99/100]; len(took) > 100 && slowest > 2*followed {
			t.Errorf("99 of 100 of milan's changes are there after %v, want at most %v", slowest, 2*followed)
		}
		stop, done = make(chan struct{}), make(chan struct{})
		go func() {
			defer close(done)
			last := []*exports.Service{attackedBy("true", 1, 0)}
			a.attack(stop, time.Hour, func() { a.tell(last) })
		}()
		// Its other changes come first.
		eventuallyWithin(t, time.Minute+length, "the true list after the attack", func() error {
			all, err := rome.endpoints("true")
			if err == nil && len(all) != 1 {
				err = fmt.Errorf("%q; gateway: %s; multicluster: %s", all, a.lab.gateway.output(),
					rome.controller.output())
			}
			return err
		})
		t.Logf("the true list is there %v after the attack", time.Since(began)-passed)
		close(stop)
		<-done
		log.read(t)
		requireFewRequests(t, log.requests, time.Since(began), a.lab.gatewayUser(), rome.account())
		for who, p := range map[string]*peerProcess{"the gateway": a.lab.gateway, "the controller": rome.controller} {
			t.Logf("%s: %v of CPU, %s MiB resident, at most %s", who, p.cpu(t), mebibytes(p.resident(t)),
				mebibytes(p.peak(t)))
			if p.peak(t) > 64<<20 {
				t.Errorf("%s takes more than 64 MiB", who)
			}
		}
		db, err := os.Stat(rome.api.path("etcd/member/snap/db"))
		need.NoError(t, err)
		t.Logf("etcd has %s MiB", mebibytes(int(db.Size())))
		if db.Size() > 2<<30 {
			t.Error("etcd is full by its default")
		}
	}, kubernetes)
}

// testHonestChange returns how long a change in milan takes to come to rome.
func testHonestChange(t *testing.T, rome, milan *multiclusterLab, n int) time.Duration {
	t.Helper()
	n = 1 + n%20_000
	milan.apply(sliceOf("web", 0, n, 1))
	began, want := time.Now(), "milan "+milan.seen(endpointAddress(n))
	eventuallyWithin(t, time.Minute, "milan's change", func() error {
		all, err := rome.endpoints("web")
		if err == nil && !slices.Contains(all, want) {
			err = fmt.Errorf("no %s of %d; multicluster: %s", want, len(all), rome.controller.output())
		}
		return err
	})
	return time.Since(began)
}

// requireOnlyAdmitted: culvert multicluster has made nothing but in namespace shop, every address
// is of the cluster that it is said to be of, and other objects are as they were.
func requireOnlyAdmitted(t *testing.T, rome *multiclusterLab, bait []object) {
	t.Helper()
	within := map[string][]string{"bari": {kubeBari.seenPods, kubeBari.seenExt}, "milan": {kubeMilan.seenPods},
		"rome": {rome.pod(&kubeNodes[0], 5) + "/32"}}
	for _, kind := range [][2]string{{"v1", "Service"}, {"discovery.k8s.io/v1", "EndpointSlice"},
		{mcsVersion, "ServiceImport"}} {
		all, err := rome.api.admin.list(kind[0], kind[1], "")
		need.NoError(t, err)
		for _, o := range all {
			labels, _ := field(o, "metadata", "labels").(object)
			if _, ours := labels["culvert.io/multicluster"]; !ours {
				continue
			}
			name := fmt.Sprint(kind[1], " ", field(o, "metadata", "namespace"), "/", field(o, "metadata", "name"))
			if field(o, "metadata", "namespace") != "shop" {
				t.Errorf("there is %s", name)
			}
			cluster := fmt.Sprint(labels["multicluster.kubernetes.io/source-cluster"])
			endpoints, _ := o["endpoints"].([]any)
			for _, e := range endpoints {
				at := netip.MustParseAddr(fmt.Sprint(e.(object)["addresses"].([]any)[0]))
				if at == netip.MustParsePrefix(kubeBari.seenExt).Addr() || !slices.ContainsFunc(within[cluster],
					func(cidr string) bool { return netip.MustParsePrefix(cidr).Contains(at) }) {
					t.Errorf("%s of %s has %s", name, cluster, at)
				}
			}
		}
	}
	for _, o := range bait {
		is := mustObject(t)(rome.api.admin.get(o))
		if field(is, "metadata", "resourceVersion") != field(o, "metadata", "resourceVersion") {
			t.Errorf("it has changed: %v", is)
		}
	}
}

// requireFewRequests: a gateway and the controller have requested no more often than SECURITY.md
// says, and written nowhere else.
func requireFewRequests(t *testing.T, requests map[string]int, passed time.Duration, gateway, controller string) {
	t.Helper()
	most := map[string]float64{
		gateway + " update peerexports/ culvert":    5 + passed.Seconds()*5/2,
		gateway + " get peerexports/ culvert":       5 + passed.Seconds()/30,
		gateway + " update peerings/status culvert": 5 + passed.Seconds(),
		gateway + " create events/ culvert":         30 + passed.Minutes(),
		gateway + " update leases/ culvert":         5 + passed.Seconds(),
		controller + " update leases/ culvert":      5 + passed.Seconds(),
		controller + " create events/ culvert":      200 + passed.Minutes(),
	}
	writes := 0
	for _, what := range slices.Sorted(maps.Keys(requests)) {
		n, fields := requests[what], strings.Fields(what)
		user, verb, resource, ns := fields[0], fields[1], fields[2], strings.Join(fields[3:], "")
		if user != gateway && user != controller || verb == "watch" || verb == "list" {
			continue
		}
		t.Logf("%6d × %s", n, what)
		limit, ok := most[what]
		switch {
		case ok:
		case user == controller && ns == "shop" && verb != "get":
			writes, limit = writes+n, 5000+200*passed.Seconds()
		default:
			t.Errorf("%s has asked to %s %s in namespace %q", user, verb, resource, ns)
			continue
		}
		if float64(n) > limit {
			t.Errorf("%s: %d times in %v, want at most %.0f", what, n, passed, limit)
		}
	}
	if most := 5000 + 200*passed.Seconds(); float64(writes) > most {
		t.Errorf("the controller has written %d times in %v, want at most %.0f", writes, passed, most)
	}
}

// An auditTail counts what an API server is asked, as "user verb resource/subresource namespace".
type auditTail struct {
	file     string
	offset   int64
	requests map[string]int
}

func (a *auditTail) read(t *testing.T) {
	t.Helper()
	f, err := os.Open(a.file)
	need.NoError(t, err)
	defer f.Close()
	_, err = f.Seek(a.offset, io.SeekStart)
	need.NoError(t, err)
	for r := bufio.NewReader(f); ; {
		line, err := r.ReadBytes('\n')
		if errors.Is(err, io.EOF) { // the rest of the line is written later
			return
		}
		need.NoError(t, err)
		a.offset += int64(len(line))
		var e auditEvent
		need.NoError(t, json.Unmarshal(line, &e))
		a.requests[fmt.Sprintf("%s %s %s/%s %s", e.User.Username, e.Verb, e.ObjectRef.Resource, e.ObjectRef.Subresource,
			e.ObjectRef.Namespace)]++
	}
}

// An attacker has the place and the key of bari's gateway.
type attacker struct {
	lab      *peeringLab // rome's end
	socket   net.PacketConn
	exchange *exports.Exchange
	now      time.Time // of the Exchange, ahead of others' clocks, so that it does not keep its pace
	rand     *rand.Rand
	latest   [][]byte
	services int // of the list that changes

	sent, changed, acknowledged int
}

// The addresses of the tunnel.
const tunnelOfBari, tunnelOfRome = "169.254.18.1", "169.254.18.2"

// newAttacker peers rome with bari, whose tunnel and exports are in this process.
func newAttacker(t *testing.T, rome *peeringLab) *attacker {
	t.Helper()
	again := *rome.kubeLab
	again.kubeEnd = &kubeRomeBari
	again.addGateway("gw-bari")
	host, own := newPeerHost(t, "bari-gw"), newKeyPair(t)
	join(again.gatewayHost, host, kubeRomeBari.peering+"/24", kubeBari.peering+"/24", 1500)
	a := &attacker{lab: &peeringLab{kubeLab: &again, remote: &kubeBari, kubeconfigs: rome.kubeconfigs,
		agents: rome.agents}, exchange: exports.New(exports.MaxDatagram), rand: rand.New(rand.NewPCG(41, 2)),
		services: 40}
	if attackLength() > 5*time.Minute {
		a.services = exports.MaxServices
	}
	p := a.lab
	p.template("--peering=bari")
	with := p.peering()
	spec := with["spec"].(object)
	spec["publicKey"], spec["services"] = own.public, object{"export": []string{"shop"}, "import": []string{"shop"}}
	p.apply(with)
	p.awaitRights()
	p.startGateway("gateway-bari")
	startWireGuard(t, host, own, base64.StdEncoding.EncodeToString(p.publicKey().Bytes()))
	startCheckPeer(t, host)
	p.awaitCondition("Connected", "True")
	var err error
	a.socket, err = host.listenPacket("udp4", fmt.Sprintf("%s:%d", tunnelOfBari, exports.UDPPort))
	need.NoError(t, err)
	t.Cleanup(func() { a.socket.Close() })
	return a
}

// mostAtOnce is what a gateway takes of a peer in the time between two rounds.
const mostAtOnce = 20

// due returns what the Exchange sends now, and takes what has come.
func (a *attacker) due() (all [][]byte) {
	b := make([]byte, 2000)
	for a.socket.SetReadDeadline(time.Now().Add(time.Millisecond)) == nil {
		n, _, err := a.socket.ReadFrom(b)
		if err != nil {
			break
		}
		a.exchange.Receive(slices.Clone(b[:n]))
		a.acknowledged++
	}
	a.now = a.now.Add(time.Second)
	for now := a.now; len(all) < mostAtOnce; {
		datagrams, next := a.exchange.Due(now)
		all = append(all, datagrams...)
		if now = next; next.Sub(a.now) > 800*time.Millisecond {
			break
		}
	}
	a.latest = append(a.latest, all...)
	a.latest = a.latest[max(0, len(a.latest)-200):]
	return all
}

func (a *attacker) send(datagrams [][]byte) {
	to := &net.UDPAddr{IP: net.ParseIP(tunnelOfRome), Port: exports.UDPPort}
	for _, b := range datagrams {
		a.socket.WriteTo(b, to) // what is lost is lost
	}
	a.sent += len(datagrams)
}

// tell makes the Exchange tell a list.
func (a *attacker) tell(all []*exports.Service) {
	a.exchange.Tell(all)
	a.send(a.due())
}

// attack goes from one way of attacking to the next, until stop.
func (a *attacker) attack(stop <-chan struct{}, each time.Duration, phases ...func()) {
	const pause = 50 * time.Millisecond
	tick := time.NewTicker(pause)
	defer tick.Stop()
	a.now = a.now.Add(time.Hour)
	for began := time.Now(); ; {
		phases[int(time.Since(began)/each)%len(phases)]()
		select {
		case <-stop:
			return
		case <-tick.C:
		}
	}
}

func (a *attacker) phases() []func() {
	var list []*exports.Service
	n := 0
	// A million endpoints change in a minute.
	million := func() {
		const changes, each = 1_000_000 / 60 / 20, exports.MaxEndpoints / exports.MaxServices
		for len(list) < a.services {
			list = append(list, attackedBy(fmt.Sprint("s", len(list)), each, 0))
		}
		for range changes / each {
			n++
			i := n % len(list)
			list[i] = attackedBy(list[i].Name, each, n)
			a.changed += each
		}
		a.tell(list)
	}
	return []func(){
		million,
		func() { a.tell(a.foreign()) },
		func() { // 10,000 names
			var all []*exports.Service
			n++
			for i := range 10_000 * (1 + n%2) / 20 { // every second list is too long
				all = append(all, attackedBy(fmt.Sprintf("n%d", (n*500+i)%10_000), 1, 0))
			}
			a.tell(all)
		},
		million,
		func() {
			million()
			var all [][]byte
			for range 100 {
				all = append(all, a.damaged())
			}
			a.send(all)
		},
	}
}

// attackedBy is a Service of bari that is as old as can be.
func attackedBy(name string, endpoints, seed int) *exports.Service {
	s := &exports.Service{Namespace: "shop", Name: name, Type: exports.ClusterSetIP, Created: time.Unix(1, 0).UTC(),
		Ports: []exports.Port{{Name: "http", Protocol: "TCP", Port: 80}}}
	g := exports.Group{Ports: []exports.Port{{Name: "http", Protocol: "TCP", Port: 8080}}}
	for i := range endpoints {
		at := netip.AddrFrom4([4]byte{10, 245, byte(seed), byte(1 + i)})
		g.Addresses = append(g.Addresses, exports.Endpoint{IP: at})
	}
	s.Endpoints = []exports.Group{g}
	return s
}

// foreign returns Services in others' namespaces, with others' names, and with addresses that are
// not bari's.
func (a *attacker) foreign() (all []*exports.Service) {
	for _, name := range []string{"kube-system/kube-dns", "default/kube-dns", "default/kubernetes", "other/kube-dns",
		"culvert/web", "nowhere/web", "shop/plain", "shop/own", "shop/web", "shop/-", "shop/UP.per", "../web", "shop/../x",
		"shop/"} {
		s := attackedBy("", 100, a.rand.IntN(256))
		s.Namespace, s.Name, _ = strings.Cut(name, "/")
		s.Type = []string{exports.ClusterSetIP, exports.Headless, exports.Labelled}[a.rand.IntN(3)]
		s.Ports[0].Port = uint16(a.rand.IntN(3))
		s.Labels = map[string]string{"culvert.io/multicluster": "milan", "kubernetes.io/service-name": "kube-dns"}
		for i := range s.Endpoints[0].Addresses {
			if a.rand.IntN(2) == 0 {
				at := foreignAddresses[a.rand.IntN(len(foreignAddresses))]
				s.Endpoints[0].Addresses[i].IP = netip.MustParseAddr(at)
			}
		}
		all = append(all, s)
	}
	return all
}

// foreignAddresses are pods, nodes, the gateway, the API server and a Service of rome, milan's and
// bari's pods as rome sees them, and addresses of no host of the peer.
var foreignAddresses = []string{"10.244.1.5", "172.18.0.1", "172.18.0.10", "172.18.0.60", "10.96.0.1", "10.81.0.4",
	"10.71.1.5", "10.75.1.5", "10.72.0.0", "10.69.0.1", "127.0.0.1", "169.254.18.2", "169.254.169.254", "0.0.0.0",
	"255.255.255.255", "224.0.0.1", "8.8.8.8", "::1", "fe80::1", "::ffff:10.245.0.1", "::ffff:127.0.0.1", "fd00::1"}

// damaged returns a datagram that was sent before, as it was, damaged, cut, endless, or random.
func (a *attacker) damaged() []byte {
	r := a.rand
	b := slices.Clone(a.latest[r.IntN(len(a.latest))])
	switch r.IntN(5) {
	case 1:
		b[r.IntN(len(b))] ^= byte(1 + r.IntN(255))
	case 2:
		b = b[:r.IntN(len(b))]
	case 3: // one part of many, of a list that never ends
		b[5], b[8], b[9] = 0, 2, byte(r.IntN(256))
		b = append(b, make([]byte, r.IntN(100))...)
	case 4:
		for i := 6; i < len(b); i++ {
			b[i] = byte(r.IntN(256))
		}
	}
	return b
}
