package integration

import (
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"sigs.k8s.io/yaml"

	"culvert/integration/need"
)

// A standIn is a cluster with one node and no pods. Its API server, the gateways of its Peerings
// and the agent of its node are real. The test plays the controllers, the kubelet and a load
// balancer: it starts what the Deployments and the DaemonSet describe, each gateway in a host of
// its own, reports them ready once they say so themselves, and gives Services the addresses of
// these hosts.
type standIn struct {
	t         *testing.T
	name      string
	podCIDR   string
	lan, host *peerHost // host has the API server, and is the node
	api       *kubeAPI
	free      []*peerHost            // for gateways
	runs      map[string]*standInRun // by the name of the Deployment or DaemonSet
}

// A standInRun is what runs for a Deployment or DaemonSet.
type standInRun struct {
	*peerProcess
	host  *peerHost
	probe func() bool // of readiness
	next  time.Time   // of the next probe
	ready bool
}

// probePeriod is that of an agent's startup probe; a gateway is probed each 2 s. A ready pod is not
// asked again.
const probePeriod = time.Second

// isReady reports whether the pod is ready, and probes it when it is time to.
func (r *standInRun) isReady() bool {
	if now := time.Now(); !r.ready && !now.Before(r.next) {
		r.next, r.ready = now.Add(probePeriod), r.probe()
	}
	return r.ready
}

// standInNames are the clusters beside those of clusters.sh.
var standInNames = []string{"genoa", "naples", "padua", "siena", "bari", "lecce", "pisa", "trento"}

// newStandIn makes a cluster that can have a number of peers.
func newStandIn(l *realLab, lan *peerHost, number, peers int) *standIn {
	l.t.Helper()
	s := &standIn{t: l.t, name: standInNames[number], lan: lan, runs: map[string]*standInRun{}}
	s.host = s.attach(s.name, 40+number)
	s.host.router()
	for i := range peers {
		h := s.attach(fmt.Sprintf("%s-%d", s.name, i), 60+number*peers+i)
		h.confined = true
		s.free = append(s.free, h)
	}
	s.api = startKubeAPI(s.host, s.address(s.host))
	s.podCIDR = fmt.Sprintf("10.244.%d.0/24", number)
	for _, o := range []object{
		{"apiVersion": "v1", "kind": "Node", "metadata": object{"name": s.name + "-1"},
			"spec":   object{"podCIDR": s.podCIDR, "podCIDRs": []string{s.podCIDR}},
			"status": object{"addresses": []object{{"type": "InternalIP", "address": s.address(s.host)}}}},
		// so that culvert join sees that there are load balancers
		{"apiVersion": "v1", "kind": "Service", "metadata": object{"name": "balanced", "namespace": "default"},
			"spec":   object{"type": "LoadBalancer", "ports": []object{{"port": 80}}},
			"status": object{"loadBalancer": object{"ingress": []object{{"ip": s.address(s.host)}}}}},
	} {
		need.NoError(l.t, s.api.admin.apply(o))
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		// the pace of a stand-in for controllers, until the test ends
		for ; l.t.Context().Err() == nil; time.Sleep(300 * time.Millisecond) {
			s.play("Deployment", peeringNamespace)
			s.play("DaemonSet", agentNamespace)
		}
	}()
	l.t.Cleanup(func() { <-ended })
	return s
}

// attach adds a host to the network of clusters.sh.
func (s *standIn) attach(name string, number int) *peerHost {
	s.t.Helper()
	h := newPeerHost(s.t, name)
	join(s.lan, h, "", fmt.Sprintf("172.30.0.%d/24", number), 1500)
	s.lan.ip("link set " + name + " master lan")
	return h
}

// address returns the address of a host there.
func (s *standIn) address(h *peerHost) string {
	s.t.Helper()
	fields := strings.Fields(h.run("ip", "-o", "-4", "address", "show", "dev", s.lan.name))
	address, _, _ := strings.Cut(fields[3], "/")
	return address
}

// play does what there is to do for all Deployments or DaemonSets of a namespace.
func (s *standIn) play(kind, namespace string) {
	all, _ := s.api.admin.list("apps/v1", kind, namespace) // an API server may be busy
	for _, set := range all {
		set["apiVersion"], set["kind"] = "apps/v1", kind
		name := field(set, "metadata", "name").(string)
		if s.runs[name] == nil && !s.start(set, name, namespace) {
			continue
		}
		n := 0
		if s.runs[name].isReady() {
			n = 1
		}
		generation := field(set, "metadata", "generation")
		status := object{"observedGeneration": generation, "replicas": 1, "updatedReplicas": 1, "readyReplicas": n,
			"availableReplicas": n}
		available := field(set, "status", "availableReplicas")
		if kind == "DaemonSet" {
			status = object{"observedGeneration": generation, "desiredNumberScheduled": 1, "currentNumberScheduled": 1,
				"numberMisscheduled": 0, "updatedNumberScheduled": 1, "numberReady": n, "numberAvailable": n}
			available = field(set, "status", "numberAvailable")
		}
		if field(set, "status", "observedGeneration") == generation && available == float64(n) {
			continue
		}
		s.writeStatus(object{"apiVersion": "apps/v1", "kind": kind, "metadata": object{"namespace": namespace,
			"name": name}, "status": status})
	}
}

func (s *standIn) writeStatus(o object) error {
	return s.api.admin.request(http.MethodPatch, pathOf(o)+"/status"+standInManager, "application/apply-patch+yaml", o,
		nil)
}

// start starts the pod of a Deployment or DaemonSet. It reports false while something that the pod
// needs is not there.
func (s *standIn) start(set object, name, namespace string) bool {
	template := field(set, "spec", "template").(object)
	spec := field(template, "spec").(object)
	container := spec["containers"].([]any)[0].(object)
	run := &standInRun{host: s.host}
	if namespace == peeringNamespace {
		if len(s.free) == 0 {
			return false
		}
		run.host = s.free[0]
	}
	spec["nodeName"] = s.name + "-1"
	ip := s.address(run.host)
	// no CNI gave this host an address of the pod CIDR, which culvert join expects of a Pod
	podIP := ip
	if namespace == peeringNamespace {
		podIP = fmt.Sprintf("%s%d", strings.TrimSuffix(s.podCIDR, "0/24"), 10+len(s.runs))
	}
	pod := object{"apiVersion": "v1", "kind": "Pod", "metadata": object{"name": name + "-1", "namespace": namespace,
		"labels": field(template, "metadata", "labels")}, "spec": spec,
		"status": object{"phase": "Running", "podIP": podIP, "podIPs": []object{{"ip": podIP}},
			"conditions": []object{{"type": "Ready", "status": "True"}}}}
	if s.api.admin.apply(pod) != nil {
		return false
	}
	token, err := s.api.boundToken(pod, spec["serviceAccountName"].(string))
	if err != nil {
		return false
	}
	args := []string{"NODE_NAME=" + s.name + "-1", "POD_NAME=" + name + "-1", "POD_NAMESPACE=" + namespace,
		"POD_IPS=" + ip}
	dir := s.t.TempDir()
	if namespace == agentNamespace {
		args = append(args, "XDG_RUNTIME_DIR="+dir)
	}
	args = append(args, os.Getenv(binaryEnv))
	for _, a := range container["args"].([]any) {
		if arg := a.(string); !strings.HasPrefix(arg, "--state=") {
			args = append(args, arg)
		}
	}
	args = append(args, "--kubeconfig="+s.api.kubeconfig(token))
	if namespace == agentNamespace {
		run.peerProcess = run.host.start(nil, "env", args...)
		run.probe = func() bool {
			_, err := run.host.try("", "env", "XDG_RUNTIME_DIR="+dir, os.Getenv(binaryEnv), "status")
			return err == nil
		}
		s.runs[name] = run
		return true
	}
	s.free = s.free[1:]
	run.peerProcess = run.host.startAs(unprivilegedUID, unprivilegedUID, "env", args...)
	client := http.Client{Transport: &http.Transport{DialContext: run.host.dialContext}}
	run.probe = func() bool {
		response, err := client.Get("http://" + healthAddress + "/readyz")
		if err != nil {
			return false
		}
		response.Body.Close()
		return response.StatusCode == http.StatusOK
	}
	s.runs[name] = run
	service := object{"apiVersion": "v1", "kind": "Service", "metadata": object{"namespace": namespace, "name": name}}
	if stored, err := s.api.admin.get(service); err == nil && field(stored, "spec", "type") == "LoadBalancer" {
		service["status"] = object{"loadBalancer": object{"ingress": []object{{"ip": ip}}}}
		s.writeStatus(service)
	}
	return true
}

// know adds contexts to the kubeconfig of all clusters: a name, the API server, and a token.
func (l *realLab) know(t *testing.T, name string, api *kubeAPI, token string) {
	t.Helper()
	file := filepath.Join(l.dir, "kubeconfig")
	text, err := os.ReadFile(file)
	need.NoError(t, err)
	var all object
	need.NoError(t, yaml.Unmarshal(text, &all))
	add := func(list, what string, value object) {
		all[list] = append(all[list].([]any), object{"name": name, what: value})
	}
	add("clusters", "cluster", object{"server": api.base, "certificate-authority-data": api.roots})
	add("users", "user", object{"token": token})
	add("contexts", "context", object{"cluster": name, "user": name})
	text, err = yaml.Marshal(all)
	need.NoError(t, err)
	need.NoError(t, os.WriteFile(file, text, 0o600))
}

// versions lists what a cluster has of culvert, with resource versions. Of objects whose status
// changes it has the generation and the annotations.
func (l *realLab) versions(cluster string) (all []string) {
	l.t.Helper()
	const line = `{range .items[*]}{.kind} {.metadata.namespace}/{.metadata.name} `
	get := func(kinds, what string, more ...string) {
		out := l.kubectl(cluster, append([]string{"get", kinds, "-o", "jsonpath=" + line + what + `{"\n"}{end}`},
			more...)...)
		for text := range strings.Lines(out) {
			if strings.Contains(text, "culvert") || strings.HasPrefix(text, "Peering") {
				all = append(all, cluster+" "+text)
			}
		}
	}
	get("services,secrets,serviceaccounts,roles,rolebindings", "{.metadata.resourceVersion}", "-A")
	get("deployments,daemonsets,poddisruptionbudgets", "{.metadata.generation} {.metadata.annotations}", "-A")
	get("namespaces,clusterroles,clusterrolebindings,customresourcedefinitions,validatingadmissionpolicies",
		"{.metadata.resourceVersion}")
	get("peerings", "{.metadata.generation} {.metadata.annotations}", "-n", peeringNamespace)
	return all
}

// TestKubeClustersMany: ten clusters are joined, of which three have kubelets and the others are
// stand-ins. An eleventh is joined later, by a command that also names contexts which cannot be
// joined: each has its sentence, and keeps no other cluster from joining. Of other pairs nothing
// changes.
func TestKubeClustersMany(t *testing.T) {
	need.Long(t, "ten clusters")
	isolated(t, func(t *testing.T) {
		l := newRealLab(t, "turin")
		l.script("hello", "turin")
		lan := l.host("lan", "/run/netns/cv-lan")
		names := []string{"rome", "milan", "turin"}
		var all []*standIn
		for i, name := range standInNames {
			s := newStandIn(l, lan, i, 2+len(standInNames))
			l.know(t, name, s.api, adminToken)
			all, names = append(all, s), append(names, name)
		}
		join := func(names []string, more ...string) (string, error) {
			args := append([]string{"join", "--image=" + realImage, "--yes"}, more...)
			for _, name := range names {
				args = append(args, "--context="+name)
			}
			return l.culvert(args...)
		}
		ten, genoa, pisa := names[:10], all[0], all[6]
		before := cpuByProgram(t)
		out, err := join(ten)
		if err != nil {
			t.Errorf("culvert join of ten clusters: %v", err)
		}
		t.Logf("culvert join of ten clusters:\n%s", out)
		for name, spent := range cpuByProgram(t) {
			if spent -= before[name]; spent > time.Second {
				t.Logf("%s: %.1f s of CPU", name, spent.Seconds())
			}
		}
		t.Logf("requests to %s: %v", genoa.name, genoa.requests(t))
		if out := l.must("verify", "--context=rome", "--context=milan", "--context=turin"); !strings.Contains(out,
			"All is well") {
			t.Error(out)
		}

		had := map[string][]string{}
		for _, name := range ten {
			had[name] = l.versions(name)
		}
		lan.ip("link set trento down")
		l.know(t, "again", genoa.api, adminToken)
		l.know(t, "guest", pisa.api, pisa.api.guest())
		for _, trento := range []string{"down", "up"} {
			lan.ip("link set trento " + trento)
			out, err := join(append(names, "again", "guest", "rome"))
			t.Logf("with trento %s:\n%s", trento, out)
			for why, want := range map[string]bool{
				"trento: cannot be reached":                trento == "down",
				"genoa and again lead to the same cluster": true,
				"guest: you are not allowed to":            true,
				"rome is given twice":                      true,
			} {
				if strings.Contains(out, why) != want {
					t.Errorf("trento is %s: %q is said: %v, want %v", trento, why, !want, want)
				}
			}
			if exit := new(exec.ExitError); !errors.As(err, &exit) || exit.ExitCode() != 1 {
				t.Errorf("trento is %s: %v, want exit status 1", trento, err)
			}
		}
		if out, err := join(names); err != nil {
			t.Errorf("%v\n%s", err, out)
		}
		for _, name := range ten {
			now := l.versions(name)
			for _, x := range had[name] {
				if !slices.Contains(now, x) {
					t.Errorf("%s has changed", x)
				}
			}
		}
	}, kubernetes, realClusters)
}

// requests counts what culvert join has asked the API server.
func (s *standIn) requests(t *testing.T) map[string]int {
	t.Helper()
	all := map[string]int{}
	for _, e := range s.api.audit(t, "admin") {
		if e.UserAgent == "culvert" {
			all[e.Verb+" "+e.ObjectRef.Resource]++
			all["all"]++
		}
	}
	return all
}

// cpuByProgram returns how much CPU time each program has had in this PID namespace.
func cpuByProgram(t *testing.T) map[string]time.Duration {
	t.Helper()
	all := map[string]time.Duration{}
	stats, err := filepath.Glob("/proc/[0-9]*/stat")
	need.NoError(t, err)
	for _, name := range stats {
		text, err := os.ReadFile(name)
		if err != nil {
			continue // it has ended
		}
		program, rest, _ := strings.Cut(string(text), ") ")
		_, program, _ = strings.Cut(program, "(")
		for _, field := range strings.Fields(rest)[11:15] { // its own and that of children that have ended
			n, err := strconv.Atoi(field)
			need.NoError(t, err)
			all[program] += time.Duration(n) * time.Second / 100 // USER_HZ
		}
	}
	return all
}
