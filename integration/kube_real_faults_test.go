package integration

import (
	"strings"
	"testing"
	"time"

	"culvert/integration/need"
)

// A realFault is a fault that culvert verify has to name.
type realFault struct {
	name, want string
	make, mend func()
}

// faults returns what can be wrong between two joined clusters. The gateways are on nodes 1 or 2.
func (l *realLab) faults() []realFault {
	l.t.Helper()
	field := func(cluster, kind, name, path string) string {
		return l.kubectl(cluster, "-n", "culvert", "get", kind, name, "-o", "jsonpath={"+path+"}")
	}
	nft := func(host *peerHost, rules string) (make, mend func()) {
		return func() { host.run("nft", "add table ip fault; "+rules) }, func() {
			host.run("nft", "delete table ip fault")
		}
	}
	port := field("milan", "service", "culvert-rome", ".spec.ports[0].nodePort")
	gateway := l.pod("milan", "culvert/"+field("milan", "peering", "rome", ".status.active.pod"))
	at := l.node(field("milan", "peering", "rome", ".status.active.node"))
	away := map[string]string{"rome-1": "rome-2", "rome-2": "rome-1"}[field("rome", "peering", "milan",
		".status.active.node")]
	entry := l.node("milan-1") // culvert join has chosen its address as the endpoint

	var all []realFault
	add := func(name, want string, make, mend func()) { all = append(all, realFault{name, want, make, mend}) }

	// what a CNI makes of it
	policy, free := nft(gateway,
		"add chain ip fault in { type filter hook input priority 0; }; add rule ip fault in udp dport 51840 drop")
	add("NetworkPolicy", "NetworkPolicy closed in culvert keeps UDP 51840 from the gateway of rome away", func() {
		l.apply("milan",
			"apiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: {name: closed, namespace: culvert}\nspec: {podSelector: {}, policyTypes: [Ingress], "+
				"ingress: [{ports: [{protocol: UDP, port: 6091}]}]}\n")
		policy()
	}, func() { free(); l.kubectl("milan", "-n", "culvert", "delete", "networkpolicy", "closed") })
	closed, open := nft(entry,
		"add chain ip fault pre { type filter hook prerouting priority -300; }; add rule ip fault pre udp dport "+port+
			" drop")
	add("closed port", "nothing passes between the gateways", closed, open)
	hole, mended := nft(at,
		"add chain ip fault f { type filter hook forward priority 0; }; add rule ip fault f meta length > 1200 ip daddr != 10.244.0.0/16 udp sport 51840 drop; "+
			"add rule ip fault f meta length > 1200 udp dport 51840 drop")
	add("MTU hole", "packets of more than", hole, mended)
	other, same := nft(l.node(away),
		"add chain ip fault out { type filter hook output priority 0; }; add rule ip fault out udp dport 6091 @th,96,24 set 0x4d4d4d")
	add("wrong VNI", "VNI", other, same)
	add("gateway down", "Deployment culvert-milan has 0 replicas", func() {
		l.kubectl("rome", "-n", "culvert", "scale", "deployment", "culvert-milan", "--replicas=0")
		l.kubectl("rome", "-n", "culvert", "wait", "--for=delete", "pod", "-l", "app=culvert-gateway", "--timeout=60s")
	}, func() { l.kubectl("rome", "-n", "culvert", "scale", "deployment", "culvert-milan", "--replicas=1") })
	return all
}

// TestKubeClustersFaults: culvert verify names each fault between two clusters of real nodes, and
// succeeds again when it is repaired.
func TestKubeClustersFaults(t *testing.T) {
	need.Long(t, "each fault of two real clusters")
	isolated(t, func(t *testing.T) {
		l := newRealLab(t)
		l.must("join", "--image="+realImage, "--yes", inBoth[0], inBoth[1])
		for _, f := range l.faults() {
			t.Run(f.name, func(t *testing.T) {
				f.make()
				began := time.Now()
				out, err := l.culvert("verify", inBoth[0], inBoth[1])
				wrong := ""
				if _, after, found := strings.Cut(out, "\nwrong: "); found {
					wrong = after
				}
				t.Logf("%.1f s: %s", time.Since(began).Seconds(), wrong)
				if joined := strings.Join(strings.Fields(wrong), " "); err == nil || !strings.Contains(joined, f.want) {
					t.Errorf("%v, want %q:\n%s", err, f.want, out)
				}
				f.mend()
				eventuallyWithin(t, 3*time.Minute, "culvert verify succeeds again", func() error {
					_, err := l.culvert("verify", inBoth[0], inBoth[1])
					return err
				})
			})
		}
	}, kubernetes, realClusters)
}
