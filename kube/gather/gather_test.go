package gather

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"culvert/gateway/gather"
	"culvert/integration/need"
)

// unpack returns the files of an archive, and all of it as one text.
func unpack(t *testing.T, a *gather.Archive, names *gather.Pseudonyms) (files map[string]string, whole string) {
	t.Helper()
	var out bytes.Buffer
	need.NoError(t, a.Write(&out, names))
	files = map[string]string{}
	c, err := gather.Read(&out, func(file string, data []byte) error {
		files[file] = string(data)
		return nil
	})
	need.NoError(t, err)
	text, err := json.Marshal(c)
	need.NoError(t, err)
	for _, file := range slices.Sorted(maps.Keys(files)) {
		text = fmt.Appendf(text, "\n%s\n%s", file, files[file])
	}
	return files, string(text)
}

// TestCollect: the archive has what the cluster, its pods and their logs say, and never a secret.
func TestCollect(t *testing.T) {
	s := newServer()
	a := &gather.Archive{}
	s.start(t, "admin@romulus").Collect(t.Context(), a)
	if len(a.Missing) > 0 {
		t.Errorf("missing: %v", a.Missing)
	}
	files, whole := unpack(t, a, nil)
	pod := "admin@romulus/culvert/" + gatewayPod + "/"
	for file, has := range map[string]string{
		"admin@romulus/version.json":                                      "v1.37.0",
		"admin@romulus/objects/peerings.json":                             "gate.milanese.example:51840",
		"admin@romulus/objects/nodes.json":                                "zone-vulture",
		"admin@romulus/objects/gateways.json":                             "HTTPS_PROXY",
		"admin@romulus/objects/events.json":                               "Back-off",
		"admin@romulus/objects/imported-endpointslices.json":              "10.61.3.3",
		pod + "culvert.log":                                               "old-gannet-3",
		pod + "previous.log":                                              "bittern-old",
		pod + "status.json":                                               `"peer": "milanese"`,
		pod + "doctor.json":                                               "receive buffer",
		pod + "rules.json":                                                "remap to",
		pod + "routes.json":                                               "worker-kestrel",
		pod + "connections.json":                                          "established",
		"admin@romulus/culvert-nodes/" + agentPod + "/" + gather.NodeFile: "wigeon0",
		"admin@romulus/culvert-nodes/" + agentPod + "/culvert.log":        "link made",
	} {
		if !strings.Contains(files[file], has) {
			t.Errorf("%s has no %q: %s", file, has, files[file])
		}
	}
	for _, secret := range []string{secretKey, "hunter22", "user-token", "machineID", "last-applied", "10.244.7.123"} {
		if strings.Contains(whole, secret) {
			t.Errorf("%s is in it", secret)
		}
	}
	if !strings.Contains(whole, publicKey) {
		t.Error("the public key is not in it")
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if slices.ContainsFunc(s.asked, func(path string) bool { return strings.Contains(path, "secret") }) {
		t.Errorf("Secrets were asked for: %q", s.asked)
	}
}

// TestCollectAnonymised: nothing that went in as a name, an address or a key is in the archive, and
// the words of Kubernetes and of culvert are.
func TestCollectAnonymised(t *testing.T) {
	s := newServer()
	s.denied = []string{"/leases", agentPod + "/exec"}
	a := &gather.Archive{}
	s.start(t, "admin@romulus").Collect(t.Context(), a)
	_, whole := unpack(t, a, gather.NewPseudonyms())
	needles := append(s.all(t), "admin@romulus", "romulus", "6f1d2c3b-1111-4222-8333-444455556666")
	if len(needles) < 60 {
		t.Fatalf("only %d names went in: %q", len(needles), needles)
	}
	for _, needle := range needles {
		if strings.Contains(strings.ToLower(whole), strings.ToLower(needle)) {
			at := strings.Index(strings.ToLower(whole), strings.ToLower(needle))
			t.Errorf("%s is in it: …%s…", needle, whole[max(0, at-80):min(len(whole), at+80)])
		}
	}
	for _, word := range []string{"PeerSilent", "is silent", "Running", "v1.37.0", "kubelet", "the API server answers again",
		"no such host", "culvert-nodes", "/objects/peerings.json", "peer-lost", "you may not list leases", "HTTPS_PROXY"} {
		if !strings.Contains(whole, word) {
			t.Errorf("%q is not in it", word)
		}
	}
	if t.Failed() {
		t.Log(whole)
	}
}

// TestCollectWithoutRights: what the user may not see is named, each with the right that is
// missing, and the rest is there.
func TestCollectWithoutRights(t *testing.T) {
	s := newServer()
	s.denied = []string{"/nodes", "/namespaces/culvert/events", "/services", "/exec", agentPod + "/log", "/leases",
		"/networkpolicies", "/deployments"}
	delete(s.objects, "/apis/culvert.io/v1alpha1/namespaces/culvert-nodes/tunnelnodes")
	a := &gather.Archive{}
	s.start(t, "rome").Collect(t.Context(), a)
	var got []string
	for i := range a.Missing {
		got = append(got, a.Missing[i].String())
	}
	const agent = "rome: culvert-nodes: " + agentPod
	const allow = ": have an administrator of the cluster allow it, or gather"
	want := []string{
		"rome: tunnelnodes: the cluster has no resource tunnelnodes: is culvert installed there?",
		"rome: nodes: you may not list nodes" + allow,
		"rome: deployments: you may not list deployments in namespace culvert" + allow,
		"rome: services: you may not list services in namespace culvert" + allow,
		"rome: leases: you may not list leases in namespace culvert" + allow,
		"rome: networkpolicies: you may not list networkpolicies in namespace culvert" + allow,
		"rome: events: you may not list events in namespace culvert" + allow,
		"rome: exported-services: you may not list services" + allow,
		"rome: imported-services: you may not list services" + allow,
		"rome: culvert: " + gatewayPod + ": status: you may not exec into pods in namespace culvert" + allow,
		agent + ": culvert.log: you may not get pods/log in namespace culvert-nodes" + allow,
		agent + ": previous.log: you may not get pods/log in namespace culvert-nodes" + allow,
		agent + ": node: you may not exec into pods in namespace culvert-nodes" + allow,
	}
	if !slices.Equal(got, want) {
		t.Errorf("%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	files, _ := unpack(t, a, nil)
	for file, there := range map[string]bool{"rome/objects/peerings.json": true, "rome/objects/nodes.json": false,
		"rome/culvert/" + gatewayPod + "/culvert.log": true, "rome/culvert/" + gatewayPod + "/status.json": false} {
		if (files[file] != "") != there {
			t.Errorf("%s: %q, want it there: %t", file, files[file], there)
		}
	}
}

// TestCollectFaults: a cluster that is away is missing as a whole; a command that fails, and a pod
// that does not run, are named with the reason.
func TestCollectFaults(t *testing.T) {
	away := &gather.Archive{}
	c := newServer().start(t, "rome")
	c.host = "http://127.0.0.1:1"
	c.Collect(t.Context(), away)
	if len(away.Entries) > 0 || len(away.Missing) != 1 || !strings.Contains(away.Missing[0].String(),
		"rome: all of it: the API server does not answer: ") {
		t.Errorf("%v, %v", away.Entries, away.Missing)
	}

	s := newServer()
	delete(s.answers, gatewayPod+" culvert status -o json")
	s.objects["/api/v1/namespaces/culvert-nodes/pods"] = strings.Replace(s.objects["/api/v1/namespaces/culvert-nodes/pods"],
		"state: {running:", "state: {waiting:", 1)
	const pods = "/api/v1/namespaces/culvert/pods"
	s.objects[pods] += strings.NewReplacer(gatewayPod, "culvert-multicluster-x", "app: culvert-gateway",
		"app: culvert-multicluster").Replace(s.objects[pods])
	a := &gather.Archive{}
	s.start(t, "rome").Collect(t.Context(), a)
	var got []string
	for i := range a.Missing {
		got = append(got, a.Missing[i].String())
	}
	// the log of culvert multicluster is all that there is of it
	want := []string{"rome: culvert: " + gatewayPod + ": status: no gateway of this user runs here",
		"rome: culvert-nodes: " + agentPod + ": status: its container does not run"}
	if !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}
