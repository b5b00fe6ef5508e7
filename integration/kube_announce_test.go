package integration

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"culvert/integration/need"
)

// A kubeAnnounceLab is an announceLab whose nodes read Services from an API server, with the rights
// of their manifest.
type kubeAnnounceLab struct {
	*announceLab
	api    *kubeAPI
	states string // where nodes keep their state for the next run
}

const (
	announceNamespace = "culvert-leases"
	announceUser      = "system:serviceaccount:kube-system:culvert-node"
	announceManifest  = "../kube/manifests/services.yaml"
)

func newKubeAnnounceLab(t *testing.T) *kubeAnnounceLab {
	l := &kubeAnnounceLab{announceLab: newAnnounceLab(t), states: t.TempDir()}
	host := newServiceHost(t, "api")
	join(l.lan, host, "", "172.18.0.5/24", 1500)
	l.lan.ip("link set api master lan")
	l.api = startKubeAPI(host, "172.18.0.5")
	for _, o := range readResources(t, announceManifest) {
		l.apply(o)
	}
	l.api.awaitRight(t, announceUser, "list", "/services", "default")
	l.api.awaitRight(t, announceUser, "list", "coordination.k8s.io/leases", announceNamespace)
	for _, h := range []*peerHost{l.n1, l.n2} {
		l.apply(object{"apiVersion": "v1", "kind": "Node", "metadata": object{"name": h.name},
			"status": object{"addresses": []object{{"type": "InternalIP", "address": serviceAddresses[h.name][0]}}}})
	}
	l.apply(object{"apiVersion": "v1", "kind": "Service", "metadata": object{"name": "web", "namespace": "default"},
		"spec": object{"type": "LoadBalancer", "clusterIP": "10.96.0.10",
			"ports": []object{{"name": "http", "port": 80, "protocol": "TCP"}}},
		"status": object{"loadBalancer": object{"ingress": []object{{"ip": l.vip[0].String()}}}}})
	l.apply(object{"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
		"metadata": object{"name": "web-1", "namespace": "default",
			"labels": object{"kubernetes.io/service-name": "web"}},
		"ports":     []object{{"name": "http", "port": 8080, "protocol": "TCP"}},
		"endpoints": []object{{"addresses": []string{serviceAddresses["pb"][0]}, "nodeName": "n2"}}})
	return l
}

func (l *kubeAnnounceLab) apply(o object) {
	l.Helper()
	need.NoError(l, l.api.admin.apply(o))
}

// join starts a node with the rights of the manifest.
func (l *kubeAnnounceLab) join(h *peerHost) {
	l.Helper()
	file, flags := l.given(h,
		"services: {pods: [10.244.0.0/16], serviceCIDRs: [10.96.0.0/16], announce: [172.18.0.77/32], state: "+
			filepath.Join(l.states, h.name)+"}\n")
	l.nodes[h.name] = h.start(nil, os.Getenv(binaryEnv), append([]string{"node", "--config", file}, flags...)...)
	l.says(h, "services are served", 1)
}

// given writes a node's file, which any user may read, and returns it with the flags that give the
// node the rights of the manifest.
func (l *kubeAnnounceLab) given(h *peerHost, text string) (file string, flags []string) {
	l.Helper()
	file = filepath.Join(l.TempDir(), "node.yaml")
	writeReadable(l.T, file, text)
	return file, []string{"--services=all", "--node-name", h.name, "--lease-namespace", announceNamespace,
		"--daemonset", "kube-system/culvert-node",
		"--kubeconfig", l.api.kubeconfigOf("kube-system", "culvert-node")}
}

// lease returns when a node's Lease ends, and whether somebody holds it.
func (l *kubeAnnounceLab) lease(h *peerHost) (end time.Time, held bool, err error) {
	var lease struct {
		Spec struct {
			HolderIdentity       string
			LeaseDurationSeconds int
			RenewTime            time.Time
		}
	}
	path := kubePath("coordination.k8s.io/v1", "Lease", announceNamespace, "culvert-node-"+h.name)
	err = l.api.admin.request(http.MethodGet, path, "", nil, &lease)
	return lease.Spec.RenewTime.Add(time.Duration(lease.Spec.LeaseDurationSeconds) * time.Second),
		lease.Spec.HolderIdentity != "", err
}

const takesOver = "this node answers for an address"

// TestKubeAnnounce has two nodes under a real API server, with the rights of their manifest. The
// one that MetalLB would choose answers for an address. After a kill the other takes over within a
// second of the end of the Lease, after SIGTERM within a second. While nobody reaches the API
// server, nothing moves.
func TestKubeAnnounce(t *testing.T) {
	isolated(t, func(t *testing.T) {
		l := newKubeAnnounceLab(t)
		vip := l.vip[0]
		hash := func(h *peerHost) []byte {
			sum := sha256.Sum256([]byte(h.name + "#" + vip.String()))
			return sum[:]
		}
		hosts := []*peerHost{l.n1, l.n2}
		slices.SortFunc(hosts, func(a, b *peerHost) int { return bytes.Compare(hash(a), hash(b)) })
		first, second := hosts[0], hosts[1]
		require := func(when string, names ...string) {
			t.Helper()
			if got := l.answers(vip, names); !slices.Equal(got, names) {
				t.Errorf("%s: %v answer for %s, want %v", when, got, vip, names)
			}
		}
		l.join(second)
		l.says(second, takesOver, 1)
		require("one node", second.name)
		l.join(first)
		l.says(first, takesOver, 1)
		l.says(second, "this node leaves an address to others", 1)
		require("both nodes", first.name)
		if who, _, err := l.ask(l.out, "tcp", vip.String()+":80"); err != nil || who != "pb" {
			t.Errorf("from outside %q answers, want pb: %v", who, err)
		}

		l.end(first, unix.SIGKILL)
		l.says(second, takesOver, 2)
		end, held, err := l.lease(first)
		need.NoError(t, err)
		if late := time.Since(end); !held || late < 0 || late > time.Second {
			t.Errorf("the second node takes over %v after the first one's Lease has ended (held: %t); want between 0 and 1s after it, and a held Lease", late, held)
		} else {
			t.Logf("after a kill, the second node takes over %v after the end of the Lease", late)
		}
		require("after a kill", second.name)

		l.join(first)
		l.says(first, takesOver, 1)
		require("the first is back", first.name)
		began := time.Now()
		l.nodes[first.name].cmd.Process.Signal(unix.SIGTERM)
		l.says(second, takesOver, 3)
		took := time.Since(began)
		if took > time.Second {
			t.Errorf("the second node takes over %v after SIGTERM, want at most 1s", took)
		}
		t.Logf("after SIGTERM, the second node takes over in %v", took)
		<-l.nodes[first.name].ended
		if _, held, err := l.lease(first); err != nil || held {
			t.Errorf("after SIGTERM the Lease is held: %t (%v)", held, err)
		}
		require("after SIGTERM", second.name)

		l.join(first)
		l.says(first, takesOver, 1)
		l.says(second, "this node leaves an address to others", 3)
		said := [2]int{}
		for i, h := range hosts {
			said[i] = strings.Count(l.nodes[h.name].output(), "address")
		}
		l.api.relay.cut(true)
		l.says(first, "request to the API server failed", 1)
		l.says(second, "request to the API server failed", 1)
		for end := time.Now().Add(2 * 8 * time.Second); time.Now().Before(end); {
			require("the API server is away", first.name)
		}
		l.api.relay.open()
		l.says(first, "the API server answers again", 1)
		l.says(second, "the API server answers again", 1)
		require("the API server is back", first.name)
		for i, h := range hosts {
			if now := strings.Count(l.nodes[h.name].output(), "address"); now != said[i] {
				t.Errorf("%s logs %d lines about addresses while the API server is away, want none",
					h.name, now-said[i])
			}
		}
		l.requireRights("create /events") // nothing was malformed
	}, kubernetes)
}

// requireRights fails unless the nodes have used every right of the manifest except but, and
// nothing else.
func (l *kubeAnnounceLab) requireRights(but ...string) {
	l.Helper()
	granted, asked := map[string]bool{}, map[string]bool{}
	for _, o := range readResources(l.T, announceManifest) {
		rules, _ := o["rules"].([]any)
		for _, r := range rules {
			for _, resource := range field(r.(object), "resources").([]any) {
				for _, verb := range field(r.(object), "verbs").([]any) {
					granted[fmt.Sprintf("%s %s/%s", verb, field(r.(object), "apiGroups").([]any)[0], resource)] = true
				}
			}
		}
	}
	for _, e := range l.api.audit(l.T, announceUser) {
		if e.ResponseStatus.Code == http.StatusForbidden {
			l.Errorf("%s %s is forbidden", e.Verb, e.RequestURI)
		}
		asked[e.right()] = true
	}
	for _, right := range but {
		delete(granted, right)
	}
	if !maps.Equal(asked, granted) {
		l.Errorf("the nodes have used the rights %v, the manifest grants %v", slices.Sorted(maps.Keys(asked)),
			slices.Sorted(maps.Keys(granted)))
	}
}
