package integration

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"culvert/integration/need"
)

// kubeProxy probes for the program that contains kube-proxy's nftables mode.
var kubeProxy = probe{"kubernetes", func(testing.TB) error {
	dir := os.Getenv(kubeAssetsEnv)
	if dir == "" {
		return fmt.Errorf("%s names no folder with kube-proxy; see make test-kube", kubeAssetsEnv)
	}
	_, err := os.Stat(filepath.Join(dir, "kubeproxy"))
	return err
}}

// A proxyService is a Service with one port, from which both sides' input is made.
type proxyService struct {
	name                         string
	udp, affinity                bool
	externalLocal, internalLocal bool
	cluster                      string
	port, nodePort, targetPort   uint16
	external, balancer, ranges   []string
	endpoints                    []proxyEndpoint
}

type proxyEndpoint struct{ address, node string }

// A proxyComparison serves the same Services by kube-proxy on one node and by culvert on another.
type proxyComparison struct {
	*testing.T
	*rand.Rand
	f             proxyFamily
	kube, culvert *proxyNode
	sets          io.Writer // input of kube-proxy
	file          string    // of culvert
	process       *peerProcess
	number        uint32 // of the last probe
	set           int
	marker        proxyService
	counts        map[string]int
}

// proxySeedEnv passes the seed to the process inside the namespaces.
const proxySeedEnv = "CULVERT_PROXY_SEED"

// TestKubeProxyAgrees compares a node of kube-proxy in nftables mode with a node of culvert, for
// random Services: from pods, an endpoint itself, another node, hosts outside and a process of the
// node, at all kinds of addresses. Both must choose the same endpoints, show them the same source,
// and refuse and drop the same packets.
func TestKubeProxyAgrees(t *testing.T) {
	if os.Getenv(proxySeedEnv) == "" {
		seed := *oracleSeed
		if seed == 0 {
			seed = uint64(time.Now().UnixNano())
		}
		t.Setenv(proxySeedEnv, strconv.FormatUint(seed, 10))
	}
	for _, family := range slices.Sorted(maps.Keys(proxyFamilies)) {
		t.Run(family, func(t *testing.T) {
			isolated(t, func(t *testing.T) { compareWithKubeProxy(t, proxyFamilies[family]) }, kubeProxy,
				programs("nft", "nft"))
		})
	}
}

func compareWithKubeProxy(t *testing.T, f proxyFamily) {
	seed, err := strconv.ParseUint(os.Getenv(proxySeedEnv), 10, 64)
	need.NoError(t, err)
	t.Logf("replay with -oracle.seed=%d", seed)
	c := &proxyComparison{T: t, Rand: rand.New(rand.NewPCG(seed, 0)), f: f, counts: map[string]int{},
		kube: newProxyNode(t, "kube", &f), culvert: newProxyNode(t, "culvert", &f), file: filepath.Join(t.TempDir(),
			"node.yaml")}
	c.startKubeProxy()
	sets := 6
	if os.Getenv(longEnv) != "" {
		sets = 100
	}
	for range sets {
		c.next(c.services())
	}
	probes := 0
	for _, n := range c.counts {
		probes += n
	}
	t.Logf("%d sets of Services, %d packets: %v", sets, probes, c.counts)
	for _, kind := range []string{"sent on", "refused", "dropped"} {
		if c.counts[kind] == 0 {
			t.Errorf("no packet was %s, so the comparison shows nothing about it", kind)
		}
	}
}

// startKubeProxy starts kube-proxy, which reads sets from a pipe.
func (c *proxyComparison) startKubeProxy() {
	c.Helper()
	cmd := need.Command(c, filepath.Join(os.Getenv(kubeAssetsEnv), "kubeproxy"), "-node", "n1", "-address", c.f.node,
		"-pods", c.f.pods, "-services", c.f.services)
	in, err := cmd.StdinPipe()
	need.NoError(c, err)
	log, err := os.Create(filepath.Join(c.TempDir(), "kube-proxy.log"))
	need.NoError(c, err)
	cmd.Stdout, cmd.Stderr = log, log
	need.NoError(c, c.kube.do(cmd.Start))
	c.sets = in
	c.Cleanup(func() {
		cmd.Process.Kill()
		cmd.Wait()
		text, _ := os.ReadFile(log.Name())
		log.Close()
		if c.Failed() {
			rules, err := c.kube.try("", "nft", "list", "ruleset")
			c.Logf("kube-proxy:\n%s\n%s %v", text, rules, err)
		}
	})
}

func (c *proxyComparison) some(probability float64) bool { return c.Float64() < probability }

// services makes some Services.
func (c *proxyComparison) services() (all []*proxyService) {
	c.set++
	for i := range 3 + c.IntN(4) {
		s := &proxyService{
			name: fmt.Sprintf("s%d", i), udp: c.some(.4), affinity: c.some(.2), externalLocal: c.some(.4),
			internalLocal: c.some(.3),
			cluster:       c.f.cluster(20*c.set%3000 + i), port: uint16(80 + i), targetPort: uint16(8000 + c.IntN(100)),
		}
		if c.some(.6) {
			s.nodePort = uint16(30000 + 10*i + c.IntN(10))
		}
		for n := range 2 {
			if c.some(.3) {
				s.external = append(s.external, c.f.virtual(100*c.set%20000+10*i+n))
			}
		}
		if c.some(.4) {
			s.balancer = append(s.balancer, c.f.virtual(100*c.set%20000+10*i+5))
			if c.some(.5) {
				s.ranges = []string{c.f.ranges}
				if c.some(.3) {
					s.ranges = append(s.ranges, c.f.pods)
				}
			}
		}
		for range c.IntN(5) {
			node := 1 + c.IntN(2)
			s.endpoints = append(s.endpoints, proxyEndpoint{c.f.pod(node, c.IntN(125)), fmt.Sprintf("n%d", node)})
		}
		slices.SortFunc(s.endpoints, func(a, b proxyEndpoint) int { return strings.Compare(a.address, b.address) })
		s.endpoints = slices.Compact(s.endpoints)
		all = append(all, s)
	}
	return all
}

// next gives both nodes the same Services, and compares what they do with packets.
func (c *proxyComparison) next(services []*proxyService) {
	c.Helper()
	c.marker = proxyService{name: "marker", cluster: c.f.cluster(20*c.set%3000 + 19), port: 9,
		targetPort: uint16(20000 + c.set),
		endpoints:  []proxyEndpoint{{c.f.pod(2, 251), "n2"}}}
	all := append(slices.Clone(services), &c.marker)
	text, err := json.Marshal(c.f.objects(all))
	need.NoError(c, err)
	if _, err := c.sets.Write(append(text, '\n')); err != nil {
		c.Fatal(err)
	}
	need.NoError(c, os.WriteFile(c.file, []byte(c.f.yaml(all)), 0o600))
	if c.process == nil {
		c.culvert.refused = refuseNetfilter
		c.process = c.culvert.start(nil, os.Getenv(binaryEnv), "node", "--config", c.file)
		c.process.awaitOutput(c.T, "services are served")
	} else {
		c.process.cmd.Process.Signal(unix.SIGHUP)
	}
	for _, n := range []*proxyNode{c.kube, c.culvert} {
		eventually(c.T, "the marker of "+n.name, func() error {
			marker := c.mark()
			fates, _, err := n.ask(nil, marker, 20*time.Millisecond)
			if end := fmt.Sprintf("to %s,", net.JoinHostPort(c.marker.endpoints[0].address,
				strconv.Itoa(int(c.marker.targetPort)))); err == nil &&
				!strings.HasPrefix(string(fates[marker.id]), end) {
				err = errNotYet
			}
			return err
		})
	}
	// kube-proxy removes UDP entries of deleted endpoints some time after their rules, but this
	// test compares new connections.
	need.NoError(c, c.kube.do(func() error { return netlink.ConntrackTableFlush(netlink.ConntrackTable) }))
	for _, s := range services {
		for _, g := range c.groups(s) {
			c.compare(g)
		}
	}
}

func (c *proxyComparison) probe(from, to string, port uint16, udp bool) *proxyProbe {
	c.number++
	return &proxyProbe{id: c.number, from: netip.MustParseAddr(from).String(), to: to, port: port, udp: udp}
}

// mark comes from a pod, whose address the endpoint sees, so that it uses no port of the node.
func (c *proxyComparison) mark() *proxyProbe {
	return c.probe(c.f.pod(3, c.IntN(250)), c.marker.cluster, c.marker.port, false)
}

// A proxyGroup is packets to one address from one kind of client.
type proxyGroup struct {
	service *proxyService
	who     string
	from    func() string // nil: a process of the node
	fixed   bool          // from always returns the same address
	to      string
	port    uint16
}

// groups are all kinds of clients at a few of a Service's addresses.
func (c *proxyComparison) groups(s *proxyService) (all []proxyGroup) {
	type place struct {
		to   string
		port uint16
	}
	places := []place{{s.cluster, s.port}}
	if s.nodePort > 0 {
		places = append(places, place{c.f.node, s.nodePort})
	}
	for _, a := range append(slices.Clone(s.external), s.balancer...) {
		places = append(places, place{a, s.port})
	}
	switch c.IntN(4) {
	case 0:
		places = append(places, place{s.cluster, s.port + 1000})
	case 1:
		places = append(places, place{c.f.cluster(20*c.set%3000 + 18), s.port})
	case 2:
		places = append(places, place{c.f.node, 29999})
	}
	c.Shuffle(len(places), func(i, j int) { places[i], places[j] = places[j], places[i] })
	for _, p := range places[:min(2, len(places))] {
		clients := []proxyGroup{
			{who: "a pod of this node", from: func() string { return c.f.pod(1, 125+c.IntN(125)) }},
			{who: "a pod of another node", from: func() string { return c.f.pod(3, c.IntN(250)) }},
			{who: "a host outside", from: func() string { return c.f.outside(c.IntN(256)) }},
			{who: "another node", from: func() string { return c.f.other }, fixed: true},
			{who: "a process of the node", fixed: true},
		}
		for _, e := range s.endpoints {
			clients = append(clients, proxyGroup{who: "the endpoint " + e.address,
				from: func() string { return e.address }, fixed: true})
		}
		c.Shuffle(len(clients), func(i, j int) { clients[i], clients[j] = clients[j], clients[i] })
		for _, g := range clients[:2] {
			if s.affinity && g.fixed {
				continue // a single client gets one endpoint, and each side may choose a different one
			}
			g.service, g.to, g.port = s, p.to, p.port
			all = append(all, g)
		}
	}
	return all
}

// groupSize is how many packets of a group are sent: enough for each of four endpoints to get one,
// with one exception in six million if source ranges admit only half.
const groupSize = 128

// compare sends a group to both nodes.
func (c *proxyComparison) compare(g proxyGroup) {
	c.Helper()
	want := c.outcome(c.kube, &g, groupSize)
	n := groupSize
	if len(want) == 1 && want[fateRefused] > 0 {
		n = 8 // culvert limits errors to some a second
	}
	began, tick := time.Now(), time.NewTicker(20*time.Millisecond)
	defer tick.Stop()
	got := c.outcome(c.culvert, &g, n)
	for len(want) == 1 && want[fateRefused] > 0 && got[""] > 0 && time.Since(began) < proxyPatience {
		<-tick.C
		got = c.outcome(c.culvert, &g, 1)
	}
	for fate, n := range want {
		kind := "sent on"
		switch fate {
		case fateRefused:
			kind = "refused"
		case "":
			kind = "dropped"
		}
		c.counts[kind] += n
	}
	same := func(a, b map[proxyFate]int) bool {
		return slices.Equal(slices.Sorted(maps.Keys(a)), slices.Sorted(maps.Keys(b)))
	}
	if !same(want, got) {
		out, _ := c.culvert.getFrom("127.0.0.1:8083", "/metrics")
		for line := range strings.Lines(out) {
			if !strings.HasPrefix(line, "#") && !strings.HasSuffix(line, " 0\n") {
				c.Log(strings.TrimSpace(line))
			}
		}
		c.Errorf("set %d, %s asks %s port %d:\nkube-proxy: %v\nculvert:    %v\nservice: %+v", c.set, g.who, g.to,
			g.port, want, got, *g.service)
	}
}

// outcome counts the fates of a group.
func (c *proxyComparison) outcome(n *proxyNode, g *proxyGroup, size int) map[proxyFate]int {
	c.Helper()
	all := map[proxyFate]int{}
	if g.from == nil {
		for range size {
			fate, err := n.process(c.probe(c.f.node, g.to, g.port, g.service.udp), c.mark())
			if err != nil {
				c.Fatalf("%s asks %s port %d of %s: %v", g.who, g.to, g.port, n.name, err)
			}
			all[fate]++
		}
		return all
	}
	var probes []*proxyProbe
	for range size {
		probes = append(probes, c.probe(g.from(), g.to, g.port, g.service.udp))
	}
	fates, settled, err := n.ask(probes, c.mark(), proxyPatience)
	if err != nil || !settled {
		c.Fatalf("%s asks %s port %d of %s: the marker does not come back: %v", g.who, g.to, g.port, n.name, err)
	}
	first := map[string]proxyFate{} // by client
	for _, p := range probes {
		fate := fates[p.id]
		all[fate]++
		if before, again := first[p.from]; again && g.service.affinity && strings.HasPrefix(string(fate), "to ") &&
			before != fate {
			c.Errorf("%s: %s asks %s port %d: %q, then %q in spite of affinity", n.name, p.from, g.to, g.port,
				before, fate)
		}
		first[p.from] = fate
	}
	return all
}
