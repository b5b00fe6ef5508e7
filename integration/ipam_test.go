package integration

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"culvert/integration/need"
)

// Three clusters with the same networks, and two peerings of rome, whose gateways share
// one memory of remaps:
//
//	                         ╔══ rome-gw-m ──── milan-gw ══ milan-node ─── milan-pod
//	rome-pod ─── rome-node ══╣
//	                         ╚══ rome-gw-p ──── paris-gw ══ paris-node ─── paris-pod
//
// Nobody writes a remap: each gateway's are auto.
type ipamGateway struct {
	host          *peerHost
	cluster, peer string
	number        int // 10.80.number.0/24 is its internal network, 172.18.number.0/24 its underlay
	node          *peerHost
	wireguard     string
	state         string
	keys          keyPair
	peerKey       string
	process       *peerProcess
	file          string
}

func (g *ipamGateway) config(remotePods string) string {
	return fmt.Sprintf(`
cluster: %s
peer: %s
wireguard: {privateKeyFile: own.key, peerPublicKeyFile: peer.pub, %s}
geneve:
  gatewayAddress: 10.80.%d.4
  nodes:
    - {name: node, vni: %d, underlay: 172.18.%d.2, address: 10.80.%d.2, podCIDRs: [10.0.1.0/24]}
network:
  local: {podCIDRs: [10.0.0.0/16, 10.3.0.0/16], externalCIDRs: [10.70.0.0/16]}
  remote:
    podCIDRs: [%s]
    externalCIDRs: [{cidr: 10.70.0.0/16, remap: auto}]
state: %s
log: {format: json}
metrics: 127.0.0.1:8082
`, g.cluster, g.peer, g.wireguard, g.number, 100+g.number, g.number, g.number, remotePods, g.state)
}

// The remote pod CIDRs of each gateway's configuration.
const (
	bothPodCIDRs = "{cidr: 10.0.0.0/16, remap: auto}, {cidr: 10.3.0.0/16, remap: auto}"
	onePodCIDR   = "{cidr: 10.0.0.0/16, remap: auto}"
)

func (g *ipamGateway) start() {
	g.host.t.Helper()
	g.process = startGateway(g.host, g.config(bothPodCIDRs), g.keys, g.peerKey)
	args := g.process.cmd.Args
	g.file = args[len(args)-1]
}

// reload writes another configuration, and waits until the gateway has applied it.
func (g *ipamGateway) reload(remotePods string) {
	t := g.host.t
	t.Helper()
	need.NoError(t, os.WriteFile(g.file, []byte(g.config(remotePods)), 0o600))
	const applied = "configuration applied"
	before := strings.Count(g.process.output(), applied)
	g.process.cmd.Process.Signal(syscall.SIGHUP)
	await(t, g.host.name+": "+applied, func() bool { return strings.Count(g.process.output(), applied) != before })
}

// remaps returns the remapped CIDR of each of the peer's CIDRs, as --check prints them. All must be
// remembered.
func (g *ipamGateway) remaps() map[string]string {
	t := g.host.t
	t.Helper()
	out := g.host.run(os.Getenv(binaryEnv), "gateway", "--check", "-o", "json", "--config", g.file)
	var view struct {
		Chosen []struct {
			Path, Real, Remapped string
			New                  bool
		}
	}
	need.NoError(t, json.Unmarshal([]byte(out), &view))
	remaps := map[string]string{}
	for _, c := range view.Chosen {
		remaps[c.Real] = c.Remapped
		if c.New {
			t.Errorf("%s: %s %s is not remembered", g.host.name, c.Path, c.Real)
		}
	}
	return remaps
}

// podAt returns the peer's pod as a gateway's cluster sees it.
func podAt(remaps map[string]string) string {
	pod, seen := netip.MustParseAddr(podAddress).As4(), netip.MustParsePrefix(remaps["10.0.0.0/16"]).Addr().As4()
	return netip.AddrFrom4([4]byte{seen[0], seen[1], pod[2], pod[3]}).String()
}

// TestIPAMPeerings restarts everything five times in random order, and removes and adds one peer.
// All remaps must stay, the pods must reach each other each time, and 100 connections of the other
// peering must survive.
func TestIPAMPeerings(t *testing.T) { beside(t, ipamPeerings, programs("ping", "ping")) }

func ipamPeerings(t *testing.T) {
	romePod, romeNode := newPeerHost(t, "rome-pod"), newPeerHost(t, "rome-node")
	connectPod(romeNode, romePod)
	romeState := stateFolder(t)
	var gateways []*ipamGateway
	pods := map[string]*peerHost{"rome": romePod}
	for i, peer := range []string{"milan", "paris"} {
		node, pod := newPeerHost(t, peer+"-node"), newPeerHost(t, peer+"-pod")
		connectPod(node, pod)
		pods[peer] = pod
		near := &ipamGateway{host: newPeerHost(t, "rome-gw-"+peer[:1]), cluster: "rome", peer: peer, number: 2 * i,
			node:      romeNode,
			wireguard: fmt.Sprintf(`role: client, endpoint: "192.0.2.%d:51840"`, 6+4*i), state: romeState,
			keys: newKeyPair(t)}
		far := &ipamGateway{host: newPeerHost(t, peer+"-gw"), cluster: peer, peer: "rome", number: 2*i + 1, node: node,
			wireguard: "role: server", state: stateFolder(t), keys: newKeyPair(t)}
		near.peerKey, far.peerKey = far.keys.public, near.keys.public
		join(near.host, far.host, fmt.Sprintf("192.0.2.%d/30", 5+4*i), fmt.Sprintf("192.0.2.%d/30", 6+4*i), 1500)
		gateways = append(gateways, near, far)
	}
	for _, g := range gateways {
		g.connectNode()
	}
	start := func() {
		t.Helper()
		for _, i := range rand.Perm(len(gateways)) {
			gateways[i].start()
		}
	}
	start()
	want := make([]map[string]string, len(gateways))
	seen := map[netip.Prefix]bool{}
	for i, g := range gateways {
		want[i] = g.remaps()
		t.Logf("%s: %v", g.host.name, want[i])
		for _, remapped := range want[i] {
			p := netip.MustParsePrefix(remapped)
			if g.cluster == "rome" && seen[p] {
				t.Fatalf("both peerings of rome see something as %s", p)
			}
			seen[p] = g.cluster == "rome"
			g.node.ip(fmt.Sprintf("route add %s via 10.80.%d.4", remapped, g.number))
		}
		if len(want[i]) != 3 {
			t.Fatalf("%s: %d remaps, want 3", g.host.name, len(want[i]))
		}
	}
	talk := func(when string) {
		t.Helper()
		for i, g := range gateways {
			if got := g.remaps(); fmt.Sprint(got) != fmt.Sprint(want[i]) {
				t.Fatalf("%s: %s: remaps %v, were %v", when, g.host.name, got, want[i])
			}
			eventually(t, when+": "+g.cluster+" pings "+g.peer, func() error {
				_, err := pods[g.cluster].try("", "ping", "-c", "1", "-W", "1", podAt(want[i]))
				return err
			})
		}
	}
	talk("at first")
	for n := range 5 {
		for _, i := range rand.Perm(len(gateways)) {
			gateways[i].process.stop()
		}
		start()
		talk(fmt.Sprintf("restart %d", n+1))
	}

	toMilan, toParis, atParis := gateways[0], gateways[2], gateways[3]
	check := holdConnections(t, pods["milan"], romePod, podAddress, podAt(want[0]), 100)
	toParis.process.stop()
	atParis.process.stop()
	toMilan.reload(onePodCIDR)
	check("without paris, and one CIDR of milan less")
	toMilan.reload(bothPodCIDRs)
	atParis.start()
	toParis.start()
	talk("with paris again")
	check("with paris again")
	refuseRelease(t, toMilan)
}

// stateFolder returns a folder that gateways may write to.
func stateFolder(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	need.NoError(t, os.Chmod(filepath.Dir(dir), 0o711))
	need.NoError(t, os.Chown(dir, unprivilegedUID, unprivilegedUID))
	return dir
}

// connectNode makes the tunnel of the cluster's node to the gateway.
func (g *ipamGateway) connectNode() {
	g.host.t.Helper()
	join(g.host, g.node, fmt.Sprintf("172.18.%d.9/24", g.number), fmt.Sprintf("172.18.%d.2/24", g.number), 1500)
	tunnel := fmt.Sprintf("tunnel%d", g.number)
	for _, command := range vxlanLink(100+g.number, fmt.Sprintf("172.18.%d.2", g.number),
		fmt.Sprintf("172.18.%d.9", g.number)) {
		g.node.ip(strings.ReplaceAll(command, " tunnel ", " "+tunnel+" "))
	}
	g.node.ip(fmt.Sprintf("address add 10.80.%d.2/24 dev %s", g.number, tunnel))
}

// holdConnections opens n connections. check sends on each and fails unless it is answered.
func holdConnections(t *testing.T, server, client *peerHost, listen, target string, n int) (check func(when string)) {
	t.Helper()
	server.accept(t, "tcp4", net.JoinHostPort(listen, exchangePort), echo)
	conns := make([]net.Conn, n)
	for i := range conns {
		var err error
		if conns[i], err = client.dial("tcp4", net.JoinHostPort(target, exchangePort)); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { conns[i].Close() })
	}
	check = func(when string) {
		t.Helper()
		for i, conn := range conns {
			conn.SetDeadline(time.Now().Add(startTimeout))
			sent := fmt.Sprintf("%s %d", when, i)
			got := make([]byte, len(sent))
			if _, err := conn.Write([]byte(sent)); err != nil {
				t.Fatalf("%s: connection %d: %v", when, i, err)
			}
			if _, err := io.ReadFull(conn, got); err != nil || string(got) != sent {
				t.Fatalf("%s: connection %d: %q, %v", when, i, got, err)
			}
		}
	}
	check("at first")
	return check
}

// refuseRelease: culvert ipam refuses to release the remaps of a running gateway, and releases
// those of a gateway that was killed.
func refuseRelease(t *testing.T, g *ipamGateway) {
	t.Helper()
	release := []string{"ipam", "release", "--config", g.file, g.peer}
	if out, err := g.host.try("", os.Getenv(binaryEnv), release...); err == nil || !strings.Contains(err.Error(),
		"gateway is running") {
		t.Errorf("release beside a running gateway: %s, %v", out, err)
	}
	g.process.cmd.Process.Kill()
	<-g.process.ended
	if out, err := g.host.try("", os.Getenv(binaryEnv), release...); err != nil ||
		strings.Count(out, " released\n") != 3 {
		t.Errorf("release after the gateway was killed: %s, %v", out, err)
	}
}

// TestIPAMFullDisk: on a full file system, no remap is given out and the file stays as it is. Once
// there is room, remaps are given out again.
func TestIPAMFullDisk(t *testing.T) { beside(t, ipamFullDisk) }

func ipamFullDisk(t *testing.T) {
	dir := t.TempDir()
	need.NoError(t, syscall.Mount("small", dir, "tmpfs", 0, "size=64k"))
	t.Cleanup(func() { syscall.Unmount(dir, 0) })
	file, ballast := filepath.Join(dir, "ipam.json"), filepath.Join(dir, "ballast")
	acquire := func(n int) (string, error) {
		out, err := need.Command(t, os.Getenv(binaryEnv), "ipam", "acquire", "--file", file, "milan", "pod",
			fmt.Sprintf("10.1.%d.0/24", n)).CombinedOutput()
		return string(out), err
	}
	for n := range 60 { // more than a page
		if out, err := acquire(n); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
	}
	before, err := os.ReadFile(file)
	need.NoError(t, err)
	const page = 4096
	for _, free := range []int64{page, 0} {
		need.NoError(t, fill(ballast, page, free))
		out, err := acquire(100)
		after, _ := os.ReadFile(file)
		if err == nil || !strings.Contains(out, "no space left on device") || string(after) != string(before) {
			t.Errorf("with %d bytes free: %v, %s", free, err, out)
		}
	}
	need.NoError(t, os.Remove(ballast))
	if out, err := acquire(100); err != nil {
		t.Errorf("with room again: %v: %s", err, out)
	}
}

// fill writes a file until its file system is full, and then gives some bytes back.
func fill(name string, page int, free int64) error {
	f, err := os.Create(name)
	if err != nil {
		return err
	}
	defer f.Close()
	size := int64(0)
	for ; ; size += int64(page) {
		if _, err := f.Write(make([]byte, page)); errors.Is(err, syscall.ENOSPC) {
			return f.Truncate(size - free)
		} else if err != nil {
			return err
		}
	}
}
