package gather

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"

	"golang.org/x/net/websocket"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/yaml"

	"culvert/integration/need"
)

const (
	publicKey = "xTIBA5rboUvnH4htodjb6e697QjLERt1NAB4mZqp8Dg="
	otherKey  = "TrMvSoP4jYQlY6RIzBgbssQqY3vxI2Pi+y71lOWWXX0="
	secretKey = "wBvQ7bmW1pQvBX1xJIVTpRGcFyVDKzYy3AqmIkgkcFg="
)

// A server is an API server with objects by the path of their list, and pods that answer.
type server struct {
	objects map[string]string // YAML of lists
	logs    map[string]string // by pod
	answers map[string]string // by pod and command
	denied  []string          // paths, or parts of them, that are forbidden

	mu    sync.Mutex
	asked []string // paths; +checklocks:mu
}

const (
	gatewayPod = "culvert-milanese-6c5f9-k8q2m"
	agentPod   = "culvert-node-zzq4x"
)

// newServer is the cluster romulus, which is joined with milanese.
func newServer() *server {
	pod := func(name, namespace, app, container string) string {
		return fmt.Sprintf(`
- metadata: {name: %s, namespace: %s, uid: 6f1d2c3b-1111-4222-8333-444455556666, labels: {app: %s, team: spaghetti, acme.example/tier: goldfish},
    annotations: {kubectl.kubernetes.io/last-applied-configuration: "password: hunter22"}}
  spec: {nodeName: worker-kestrel, serviceAccountName: kingfisher, hostname: osprey-host,
    containers: [{name: sidecar, image: "registry.ibis.example/shrike:1"}, {name: %s, image: "registry.heron.example/culvert:1.0", args: [gateway, --kube, --name=milanese],
      env: [{name: HTTPS_PROXY, value: "http://user:hunter22@proxy.example"}]}]}
  status: {phase: Running, podIP: 10.244.7.9, hostIP: 172.30.0.77, podIPs: [{ip: 10.244.7.9}, {ip: "fd00:77::9"}],
    containerStatuses: [{name: %[4]s, restartCount: 1, state: {running: {startedAt: "2026-11-29T10:00:00Z"}},
      lastState: {terminated: {reason: Error, message: "node worker-kestrel (172.30.0.77) has gone"}}}]}
`, name, namespace, app, container)
	}
	return &server{
		objects: map[string]string{
			"/apis/culvert.io/v1alpha1/namespaces/culvert/peerings": `
- metadata: {name: milanese, namespace: culvert, generation: 3}
  spec: {cluster: romulus, peer: milanese, role: Client, publicKey: ` + otherKey + `, endpoint: "gate.milanese.example:51840", internalCIDR: 10.80.4.0/22,
    local: {podCIDRs: [10.244.0.0/16], externalCIDR: 10.70.9.0/24}, remote: {podCIDRs: [{cidr: 10.245.0.0/16, remap: 10.61.0.0/16}]}, imports: pelican-imports}
  status: {publicKey: ` + publicKey + `, message: "the peer at 198.51.100.7:51840 is silent",
    active: {pod: ` + gatewayPod + `, node: worker-kestrel, addresses: [10.244.7.9], term: 2},
    nodes: [{name: worker-kestrel, vni: 4711, address: 10.80.4.2}], exports: [{name: larder, namespace: shop-falcon}],
    conditions: [{type: Connected, status: "False", reason: PeerSilent, message: "worker-kestrel sends nothing to 10.244.7.9", lastTransitionTime: "2026-11-29T10:00:00Z"}]}
`,
			"/apis/culvert.io/v1alpha1/namespaces/culvert-nodes/tunnelnodes": `
- {metadata: {name: worker-kestrel, namespace: culvert-nodes}, spec: {local: 10.244.7.1, remote: 172.30.0.77}, status: {peerings: [{name: milanese, ready: true}]}}
`,
			"/api/v1/nodes": `
- metadata: {name: worker-kestrel, labels: {kubernetes.io/hostname: worker-kestrel, topology.kubernetes.io/zone: zone-vulture}, annotations: {flannel.example/public-ip: 203.0.113.99}}
  spec: {podCIDR: 10.244.7.0/24, podCIDRs: [10.244.7.0/24, "fd00:77::/64"], providerID: "aws:///eu-raven-1/i-0abcdef12345"}
  status: {addresses: [{type: InternalIP, address: 172.30.0.77}, {type: Hostname, address: worker-kestrel.lan.example}], nodeInfo: {machineID: 4c4c4544004a, kubeletVersion: v1.37.0, kernelVersion: 6.1.0-26-amd64},
    capacity: {cpu: "2", memory: 4Gi}, images: [{names: ["registry.stork.example/app"]}]}
`,
			"/apis/apps/v1/namespaces/culvert/deployments":                  `[{metadata: {name: culvert-milanese, namespace: culvert}, spec: {replicas: 1}, status: {readyReplicas: 1}}]`,
			"/apis/apps/v1/namespaces/culvert-nodes/daemonsets":             `[{metadata: {name: culvert-node, namespace: culvert-nodes}}]`,
			"/api/v1/namespaces/culvert/pods":                               pod(gatewayPod, "culvert", "culvert-gateway", "culvert"),
			"/api/v1/namespaces/culvert-nodes/pods":                         pod(agentPod, "culvert-nodes", "culvert-node", "culvert"),
			"/api/v1/namespaces/kube-system/pods":                           `[]`,
			"/apis/networking.k8s.io/v1/namespaces/culvert/networkpolicies": `[{metadata: {name: only-magpies, namespace: culvert}, spec: {podSelector: {matchLabels: {bird: magpie-x}}}}]`,
			"/apis/coordination.k8s.io/v1/namespaces/culvert/leases":        `[{metadata: {name: culvert-milanese, namespace: culvert}, spec: {holderIdentity: ` + gatewayPod + `}}]`,
			"/api/v1/namespaces/culvert/services":                           `[{metadata: {name: culvert-milanese, namespace: culvert}, spec: {clusterIP: 10.96.44.5, type: LoadBalancer, ports: [{port: 51840}]}, status: {loadBalancer: {ingress: [{ip: 203.0.113.50}]}}}]`,
			"/api/v1/namespaces/culvert/events": `
- {metadata: {name: ` + gatewayPod + `.17f, namespace: culvert}, type: Warning, reason: BackOff, message: "Back-off pulling image \"registry.heron.example/culvert:1.0\" on worker-kestrel", involvedObject: {kind: Pod, name: ` + gatewayPod + `, namespace: culvert}, source: {component: kubelet, host: worker-kestrel}}
`,
			"/api/v1/namespaces/culvert-nodes/events":  `[]`,
			"/api/v1/services":                         `[{metadata: {name: larder, namespace: shop-falcon, labels: {culvert/export: "true"}}, spec: {clusterIP: 10.96.44.6, ports: [{name: cuckoo, port: 80}], selector: {bird: buzzard-1}}}]`,
			"/apis/discovery.k8s.io/v1/endpointslices": `[{metadata: {name: pantry-x, namespace: pelican-imports}, addressType: IPv4, endpoints: [{addresses: [10.61.3.3], nodeName: worker-kestrel}]}]`,
			"/api/v1/namespaces/culvert/secrets":       "[{data: {privateKey: " + secretKey + "}}]",
		},
		logs: map[string]string{
			gatewayPod: `time="2026-11-29T10:00:00Z" level=warning msg="the API server answers again" peering=culvert/milanese node=old-gannet-3 address=192.0.2.44 error="lookup gull.example: no such host, key ` + secretKey + `"` + "\n",
			agentPod:   `{"level":"info","msg":"link made","interface":"wigeon0","peering":"culvert/teal-peer","remote":"10.244.9.88"}` + "\n",
		},
		answers: map[string]string{
			gatewayPod + " culvert status -o json": `{"cluster": "romulus", "peer": "milanese", "role": "client", "tunnel": {"state": "down", "endpoint": "198.51.100.7:51840", "publicKey": "` + publicKey + `"},
				"nodes": [{"name": "worker-kestrel", "state": "up", "underlay": "172.30.0.77", "address": "10.80.4.2", "podCIDRs": ["10.244.7.0/24"]}],
				"findings": [{"level": "warning", "cause": "peer-lost", "text": "the peer at 198.51.100.7:51840 has not answered for 10s"}]}`,
			gatewayPod + " culvert doctor -o json --socket romulus-milanese": `[{"name": "receive buffer", "state": "good", "found": "4 MiB of 4 MiB"}]`,
			gatewayPod + " culvert rules -o json":                            `{"origin": "Peering/culvert/milanese", "stage": "from node", "match": "to 10.61.0.0/16", "action": "remap to 10.245.0.0/16"}`,
			gatewayPod + " culvert routes -o json":                           `{"origin": "Peering/culvert/milanese", "destination": "10.61.0.0/16", "to": "tunnel"}` + strings.Repeat(" ", 80_000) + "\n" + `{"destination": "10.244.7.0/24", "to": "worker-kestrel"}`,
			gatewayPod + " culvert connections -o json":                      `{"protocol": "tcp", "state": "established", "from": "worker-kestrel", "to": "tunnel", "original": {"source": "10.244.7.123"}}`,
			agentPod + " culvert status -o json":                             `{"name": "worker-kestrel", "addresses": ["172.30.0.77"], "services": [], "links": [{"interface": "wigeon0", "state": "carried", "underlay": "10.244.7.9"}]}`,
		},
	}
}

// start serves s, and returns a Cluster for a context.
func (s *server) start(t *testing.T, context string) *Cluster {
	t.Helper()
	h := httptest.NewServer(s)
	t.Cleanup(h.Close)
	c, err := New(context, &rest.Config{Host: h.URL, BearerToken: "user-token", QPS: 1000, Burst: 1000})
	need.NoError(t, err)
	return c
}

func (s *server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	s.asked = append(s.asked, r.URL.Path)
	s.mu.Unlock()
	status := func(code int, text string) {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(code)
		fmt.Fprintf(w, `{"kind": "Status", "apiVersion": "v1", "status": "Failure", "message": %q, "reason": %q, "code": %d}`, text,
			map[int]string{403: "Forbidden", 404: "NotFound"}[code], code)
	}
	switch parts := strings.Split(r.URL.Path, "/"); {
	case r.Header.Get("Authorization") != "Bearer user-token":
		status(401, "who?")
	case slices.ContainsFunc(s.denied, func(d string) bool { return strings.HasSuffix(r.URL.Path, d) }):
		status(403, "User \"curlew\" cannot get "+r.URL.Path)
	case r.URL.Path == "/version":
		fmt.Fprint(w, `{"gitVersion": "v1.37.0"}`)
	case parts[len(parts)-1] == "log" && r.URL.Query().Get("previous") == "true":
		fmt.Fprint(w, "time=x level=info msg=\"gateway running\" peer=bittern-old\n")
	case parts[len(parts)-1] == "log":
		fmt.Fprint(w, s.logs[parts[len(parts)-2]])
	case parts[len(parts)-1] == "exec":
		s.exec(w, r, parts[len(parts)-2])
	case s.objects[r.URL.Path] == "":
		status(404, "the server could not find the requested resource")
	default:
		items, err := yaml.YAMLToJSON([]byte(s.objects[r.URL.Path]))
		if err != nil {
			panic(err)
		}
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprintf(w, `{"kind": "List", "apiVersion": "v1", "items": %s}`, items)
	}
}

// exec answers as a command in a pod does, in frames of several sizes.
func (s *server) exec(w http.ResponseWriter, r *http.Request, pod string) {
	command := strings.Join(r.URL.Query()["command"], " ")
	text, ok := s.answers[pod+" "+command]
	websocket.Server{
		Handshake: func(c *websocket.Config, _ *http.Request) error {
			c.Protocol = c.Protocol[:1]
			return nil
		},
		Handler: func(c *websocket.Conn) {
			send := func(stream byte, text string) { websocket.Message.Send(c, append([]byte{stream}, text...)) }
			if r.URL.Query().Get("container") != "culvert" || !ok {
				send(2, "no gateway of ")
				send(2, "this user runs here")
				send(3, `{"status": "Failure", "message": "command terminated with exit code 2", "reason": "NonZeroExitCode"}`)
				return
			}
			send(1, "")
			for i, n := range []int{1, 150, 70_000, 20_000} {
				if i == 2 {
					send(3, `{"status": "Success"}`) // output may follow
				}
				n = min(n, len(text))
				send(1, text[:n])
				text = text[n:]
			}
		},
	}.ServeHTTP(w, r)
}

// words are the texts of the server that are nobody's names.
var words = strings.Split(`Client Running True False Connected PeerSilent Error Warning BackOff Pod InternalIP Hostname LoadBalancer
IPv4 culvert culvert-nodes culvert-gateway culvert-node true kubelet v1.37.0 6.1.0-26-amd64 2 4Gi gateway --kube 2026-11-29T10:00:00Z
client down up good warning peer-lost tunnel tcp established carried receive buffer 4 MiB of from node
sidecar HTTPS_PROXY app team bird kubernetes.io/hostname topology.kubernetes.io/zone culvert/export`, " ")

// needles returns all names, addresses and keys that a value has: its texts and the keys of labels,
// except words. Of sentences it returns what is in names already, and addresses.
func needles(v any, field string, found map[string]bool) {
	switch v := v.(type) {
	case map[string]any:
		for name, inner := range v {
			if field == "labels" || field == "matchLabels" || field == "selector" {
				needles(name, "", found)
			}
			needles(inner, name, found)
		}
	case []any:
		for _, inner := range v {
			needles(inner, field, found)
		}
	case string:
		for _, word := range strings.FieldsFunc(v, func(r rune) bool { return strings.ContainsRune(" ,;()\"\n", r) }) {
			word = strings.TrimSuffix(word, ":")
			sentence := strings.Contains(v, " ") && !strings.ContainsAny(word, "0123456789-.")
			if len(word) > 1 && !sentence && !slices.Contains(strings.Fields(strings.Join(words, " ")), word) {
				found[word] = true
			}
		}
	}
}

// all returns the needles of the server, and of what its pods say.
func (s *server) all(t *testing.T) []string {
	t.Helper()
	found := map[string]bool{secretKey: true, "hunter22": true}
	for _, text := range s.objects {
		var v any
		need.NoError(t, yaml.Unmarshal([]byte(text), &v))
		needles(v, "", found)
	}
	for _, text := range s.answers {
		for d := json.NewDecoder(strings.NewReader(text)); d.More(); {
			var v any
			need.NoError(t, d.Decode(&v))
			needles(v, "", found)
		}
	}
	for _, name := range []string{"old-gannet-3", "192.0.2.44", "gull.example", "wigeon0", "teal-peer", "10.244.9.88",
		"bittern-old", "curlew"} {
		found[name] = true
	}
	for _, sentence := range []string{"10s", "Back-off", "sidecar"} {
		delete(found, sentence)
	}
	return slices.Sorted(maps.Keys(found))
}
