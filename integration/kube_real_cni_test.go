package integration

import (
	"cmp"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"culvert/integration/need"
)

// cniEnv names the CNI of clusters.sh.
const cniEnv = "CNI"

// familyEnv names the addresses of clusters.sh.
const familyEnv = "FAMILY"

// cniTables are the nftables tables in which each CNI masquerades.
var cniTables = map[string]string{"bridge": "ip cni", "flannel": "ip nat", "flannel-host-gw": "ip flannel-ipv4",
	"kube-router": "ip nat"}

// cniTable is that of the CNI that the tests use.
func cniTable() string { return cniTables[cmp.Or(os.Getenv(cniEnv), "bridge")] }

// TestKubeClustersCNI: two clusters of real nodes whose pods' network is that of flannel or
// kube-router reach each other on all paths, and culvert leaves that network as it was.
func TestKubeClustersCNI(t *testing.T) {
	need.Long(t, "two clusters with each CNI")
	for _, cni := range []string{"flannel", "flannel-host-gw", "kube-router"} {
		t.Run(cni, func(t *testing.T) {
			t.Setenv(cniEnv, cni)
			isolated(t, testRealCNI, kubernetes, realClusters, probe{"cni", func(testing.TB) error {
				program := strings.TrimSuffix(cni, "-host-gw")
				if _, err := os.Stat(filepath.Join(os.Getenv(kubeAssetsEnv), program)); err != nil {
					return fmt.Errorf("%w; see make kube-cni", err)
				}
				return nil
			}})
		})
	}
}

// TestKubeClustersFamilies: two clusters of real nodes with IPv6, beside IPv4 and alone, reach each
// other on all paths of each family, and by a multi-cluster Service.
func TestKubeClustersFamilies(t *testing.T) {
	need.Long(t, "two clusters with each family")
	for family, paths := range map[string]int{"dual": 20, "6": 10} {
		t.Run(family, func(t *testing.T) {
			t.Setenv(familyEnv, family)
			isolated(t, func(t *testing.T) {
				l := newRealLab(t)
				out := l.script("join", realImage)
				if n := strings.Count(out, "\nok "); !strings.Contains(out, "All is well") || n < paths {
					t.Errorf("%d paths are well, want %d or more", n, paths)
				}
				t.Log(out)
				l.must("leave", "--all", "--yes", inBoth[0], inBoth[1])
			}, kubernetes, realClusters)
		})
	}
}

func testRealCNI(t *testing.T) {
	l := newRealLab(t)
	before := l.atRest()
	values := filepath.Join(t.TempDir(), "values.yaml")
	need.NoError(t, os.WriteFile(values, []byte("networkPolicy: {enabled: true}\n"), 0o600))
	l.must("join", "--image="+realImage, "--yes", "--values=rome="+values, "--values=milan="+values, inBoth[0],
		inBoth[1])
	l.meet()
	l.requireMasquerade(t)
	out := l.must("verify", inBoth[0], inBoth[1])
	if !strings.Contains(out, "All is well") {
		t.Error(out)
	}
	t.Log(out)
	t.Run("no exception", func(t *testing.T) { testRealNoException(t, l) })
	l.listen(echoBytes)
	exported := l.exported("milan", "rome", "ClusterIP", 1)
	pod := l.pod("rome", "default/hello-2")
	eventuallyWithin(t, kubeStartTimeout, "a pod of rome uses milan's Service", func() error {
		return answers(pod, exported)
	})
	if os.Getenv(cniEnv) == "kube-router" {
		t.Run("policies", func(t *testing.T) { testRealPolicies(t, l) })
	}
	l.must("leave", "--all", "--yes", inBoth[0], inBoth[1])
	l.kubectl("milan", "delete", "service", "hello")
	l.kubectl("rome", "delete", "namespace", "milan")
	l.requireAsBefore(t, before)
	l.requireRights(t, false)
}

// requireMasquerade fails unless the CNI masquerades what a pod sends out of its cluster.
func (l *realLab) requireMasquerade(t *testing.T) {
	t.Helper()
	const at = "172.30.0.1:" + realPort
	l.host("lan", "/run/netns/cv-lan").accept(t, "tcp4", at, func(conn net.Conn) {
		io.WriteString(conn, conn.RemoteAddr().(*net.TCPAddr).IP.String())
	})
	conn, err := l.pod("rome", "default/hello-1").dial("tcp4", at)
	need.NoError(t, err)
	defer conn.Close()
	seen, err := io.ReadAll(conn)
	need.NoError(t, err)
	if string(seen) != "172.30.0.11" {
		t.Errorf("outside the cluster, a pod of the node 172.30.0.11 is seen as %s: this CNI does not masquerade", seen)
	}
}

// answers asks one of realLab.listen's servers.
func answers(from *peerHost, address string) error {
	conn, err := from.dialWithin(5*time.Second, "tcp4", address)
	if err != nil {
		return err
	}
	defer conn.Close()
	conn.SetDeadline(time.Now().Add(5 * time.Second))
	if _, err := conn.Write([]byte{'x'}); err != nil {
		return err
	}
	_, err = io.ReadFull(conn, make([]byte, 1))
	return err
}

// testRealPolicies: a NetworkPolicy knows pods of the other cluster by the addresses that this
// cluster sees.
func testRealPolicies(t *testing.T, l *realLab) {
	const policy = `
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: far, namespace: default}
spec: {podSelector: {matchLabels: {app: hello}}, policyTypes: [%s], %s: [{%s: [{ipBlock: {cidr: %s/32}}]}]}
`
	first, second := l.pod("rome", "default/hello-1"), l.pod("rome", "default/hello-2")
	at := func(pod string) string { return l.seen("rome", "milan", pod) + ":" + realPort }
	requires := func(what string, passes, refused func() error) {
		t.Helper()
		eventuallyWithin(t, kubeStartTimeout, what+" refuses", func() error {
			if refused() == nil {
				return errNotYet
			}
			return nil
		})
		need.NoError(t, passes())
	}
	l.apply("milan", fmt.Sprintf(policy, "Ingress", "ingress", "from", l.seen("milan", "rome", "hello-1")))
	requires("milan's policy", func() error { return answers(first, at("hello-2")) },
		func() error { return answers(second, at("hello-2")) })
	l.kubectl("milan", "delete", "networkpolicy", "far")
	l.apply("rome", fmt.Sprintf(policy, "Egress", "egress", "to", l.seen("rome", "milan", "hello-1")))
	requires("rome's policy", func() error { return answers(second, at("hello-1")) },
		func() error { return answers(second, at("hello-2")) })
	l.kubectl("rome", "delete", "networkpolicy", "far")
	eventuallyWithin(t, kubeStartTimeout, "without policies, all passes", func() error {
		return answers(second, at("hello-2"))
	})
}
