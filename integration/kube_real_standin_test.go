package integration

import (
	"fmt"
	"net"
	"testing"
	"time"

	"culvert/integration/need"
)

const standInAddress = "10.244.77.1" // among the pods of the stand-in

// TestKubeClustersStandbyStandIn: events of the active pod of a Server whose peer is plain
// wireguard-go, which starts a new session only when WireGuard's own timers require it. The peer is
// reached at its own address, and has no Services.
func TestKubeClustersStandbyStandIn(t *testing.T) {
	need.Long(t, "1,500 connections beside switches")
	isolated(t, func(t *testing.T) {
		l := newRealLab(t)
		l.script("node", "rome", "3")
		lan, peer := l.host("lan", "/run/netns/cv-lan"), newPeerHost(t, "standin")
		lan.ip("link add standin type veth peer name eth0 netns standin", "link set standin master lan up")
		peer.ip("address add 172.30.0.99/24 dev eth0", "link set eth0 up")

		g := &realGateway{realLab: l, cluster: "rome", peer: "standin", standIn: true}
		l.apply("rome", l.must("kube", "template", "--image="+realImage, "--peering=standin", "--expose=NodePort",
			"--replicas=2"))
		key, own := newKeyPair(t), ""
		l.apply("rome", fmt.Sprintf(`
apiVersion: culvert.io/v1alpha1
kind: Peering
metadata: {name: standin, namespace: culvert}
spec:
  cluster: rome
  peer: standin
  role: Server
  publicKey: %s
  internalCIDR: 10.80.0.0/22
  local: {podCIDRs: [10.244.0.0/16], externalCIDR: 10.70.0.0/24}
  remote:
    podCIDRs: [{cidr: 10.244.0.0/16, remap: 10.61.0.0/16}]
    externalCIDR: {cidr: 10.70.2.0/24}
`, key.public))
		eventuallyWithin(t, kubeStartTimeout, "rome has a key", func() error {
			if own = g.peering(".status.publicKey"); own == "" {
				return errNotYet
			}
			return nil
		})
		port := l.kubectl("rome", "-n", "culvert", "get", "service", "culvert-standin", "-o",
			"jsonpath={.spec.ports[0].nodePort}")
		g.settle(2)
		startWireGuard(t, peer, key, own, "endpoint=172.30.0.12:"+port, "persistent_keepalive_interval=25")
		peer.ip("address add "+standInAddress+"/32 dev lo", "route add 10.244.0.0/16 dev "+liqoTunnel+" src "+
			standInAddress, "route add 10.70.0.0/24 dev "+liqoTunnel+" src "+standInAddress)

		f := newTalks(t)
		for _, h := range []*peerHost{peer, l.pod("rome", "default/hello-2")} {
			listener, err := h.listen("tcp4", ":"+realPort)
			need.NoError(t, err)
			t.Cleanup(func() { listener.Close() })
			go f.accept(listener)
		}
		const remapped = "10.61.77.1"
		pod, node := l.pod("rome", "default/hello-1"), l.node("rome-1")
		way := func(kind string, n int, from *peerHost, at string) {
			f.add(talkWay{kind, n, func(int) (net.Conn, error) { return from.dialWithin(5*time.Second, "tcp4", at) }})
		}
		way(podToPod, realTalks/2, pod, remapped+":"+realPort)
		way(podToPod, realTalks/2, peer, l.kubectl("rome", "get", "pod", "hello-2", "-o",
			"jsonpath={.status.podIP}")+":"+realPort)
		way(byNodePort, realTalks, lan, "172.30.0.12:"+l.nodePort("rome", remapped))
		way(fromNode, realTalks, node, remapped+":"+realPort)
		g.runEvents(2, f, []*pathWatch{watchPath(t, peer, ":5301", pod, remapped+":5301")})
	}, kubernetes, realClusters)
}
