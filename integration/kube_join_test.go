package integration

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/registry"
	"sigs.k8s.io/yaml"

	"culvert/integration/need"
)

// joinLab is two clusters with API servers, nodes and pods but without culvert, and a host from
// which a user reaches both.
type joinLab struct {
	t           *testing.T
	rome, milan *peeringLab
	desk        *peerHost
	kubeconfig  string
}

func newJoinLab(t *testing.T) *joinLab {
	t.Helper()
	rome, milan := newPeeringLabs(t)
	l := &joinLab{t: t, rome: rome, milan: milan, desk: rome.client}
	var clusters, users, contexts []object
	for i, p := range []*peeringLab{rome, milan} {
		address := fmt.Sprintf("127.0.0.1:%d", 7001+i)
		relayBetween(l.desk, address, p.client, fmt.Sprintf("%s:%d", p.kubeEnd.api(), kubeAPIPort))
		p.masquerade()
		go p.roll()
		clusters = append(clusters, object{"name": p.name, "cluster": object{"server": "https://" + address,
			"tls-server-name": p.kubeEnd.api(), "certificate-authority-data": p.api.roots}})
		users = append(users, object{"name": p.name, "user": object{"token": adminToken}})
		contexts = append(contexts, object{"name": "admin@" + p.name, "context": object{"cluster": p.name,
			"user": p.name}})
	}
	clusters = append(clusters, object{"name": "away", "cluster": object{"server": "https://127.0.0.1:7999"}})
	contexts = append(contexts, object{"name": "again", "context": object{"cluster": "rome", "user": "rome"}},
		object{"name": "away", "context": object{"cluster": "away", "user": "rome"}},
		object{"name": "guest", "context": object{"cluster": "milan", "user": "guest"}})
	users = append(users, object{"name": "guest", "user": object{"token": milan.api.guest()}})
	text, err := yaml.Marshal(object{"apiVersion": "v1", "kind": "Config", "clusters": clusters, "users": users,
		"contexts": contexts})
	need.NoError(t, err)
	l.kubeconfig = filepath.Join(t.TempDir(), "kubeconfig")
	need.NoError(t, os.WriteFile(l.kubeconfig, text, 0o600))
	return l
}

// relayBetween relays connections from an address of one host to an address that another host
// reaches.
func relayBetween(at *peerHost, address string, from *peerHost, to string) {
	at.t.Helper()
	at.accept(at.t, "tcp4", address, func(client net.Conn) {
		server, err := from.dial("tcp4", to)
		if err != nil {
			return
		}
		defer server.Close()
		go func() { io.Copy(client, server); client.Close() }()
		io.Copy(server, client)
	})
}

// culvert runs a command on the user's host until it ends, and returns its output.
func (l *joinLab) culvert(args ...string) (string, error) {
	l.t.Helper()
	p := l.start(args...)
	<-p.ended
	if code := p.cmd.ProcessState.ExitCode(); code != 0 {
		return p.output(), fmt.Errorf("exit status %d", code)
	}
	return p.output(), nil
}

// must is culvert, which has to succeed and to print want.
func (l *joinLab) must(want string, args ...string) {
	l.t.Helper()
	if out, err := l.culvert(args...); err != nil || !strings.Contains(out, want) {
		l.t.Fatalf("culvert %q: %v, want %q: %s", args, err, want, out)
	}
}

func (l *joinLab) start(args ...string) *peerProcess {
	return l.desk.start(nil, os.Getenv(binaryEnv), append(args, "--kubeconfig="+l.kubeconfig)...)
}

// await waits for a command's end.
func (l *joinLab) await(p *peerProcess, want string) {
	l.t.Helper()
	eventuallyWithin(l.t, kubeStartTimeout, "the command ends", func() error {
		select {
		case <-p.ended:
			return nil
		default:
			return fmt.Errorf("it still runs: %s", p.output())
		}
	})
	if out := p.output(); p.cmd.ProcessState.ExitCode() != 0 || !strings.Contains(out, want) {
		l.t.Fatalf("exit status %d, want 0 and %q: %s", p.cmd.ProcessState.ExitCode(), want, out)
	}
}

// kubelet starts what a cluster's objects describe as soon as they exist: agents, the gateway, and
// a load balancer for a Server.
func (p *peeringLab) kubelet(pod string) {
	p.t.Helper()
	has := func(apiVersion, kind, namespace, name string) {
		eventuallyWithin(p.t, kubeStartTimeout, p.name+": "+kind+" "+name, func() error {
			_, err := p.api.admin.get(object{"apiVersion": apiVersion, "kind": kind,
				"metadata": object{"namespace": namespace, "name": name}})
			if refused := new(kubeError); err != nil && !errors.As(err, &refused) {
				p.t.Fatal(err)
			}
			return err
		})
	}
	has("apps/v1", "Deployment", peeringNamespace, "culvert-"+p.remote.name)
	has("rbac.authorization.k8s.io/v1", "RoleBinding", agentNamespace, "culvert-"+p.remote.name)
	p.awaitRights()
	for i := range kubeNodes {
		if p.agents[i] == nil {
			p.kubeconfigs[i] = p.api.kubeconfig(p.agentToken(&kubeNodes[i]))
			p.startAgent(i)
		}
	}
	service := object{"apiVersion": "v1", "kind": "Service", "metadata": object{"namespace": peeringNamespace,
		"name": "culvert-" + p.remote.name}}
	if stored := mustObject(p.t)(p.api.admin.get(service)); field(stored, "spec", "type") == "LoadBalancer" {
		service["status"] = object{"loadBalancer": object{"ingress": []object{{"ip": p.kubeEnd.peering}}}}
		need.NoError(p.t, p.api.admin.request(http.MethodPatch, pathOf(service)+"/status"+standInManager,
			"application/apply-patch+yaml", service, nil))
	}
	p.startGateway(pod)
	p.podOf(p.deployment(), pod)
}

// podOf makes a Pod in which what a Deployment starts would run.
func (p *peeringLab) podOf(deployment object, name string) {
	p.t.Helper()
	d := mustObject(p.t)(p.api.admin.get(deployment))
	p.apply(object{"apiVersion": "v1", "kind": "Pod", "metadata": object{"namespace": peeringNamespace, "name": name,
		"labels": field(d, "spec", "template", "metadata", "labels")},
		"spec": field(d, "spec", "template", "spec")})
}

func (p *peeringLab) deployment() object {
	return object{"apiVersion": "apps/v1", "kind": "Deployment", "metadata": object{"namespace": peeringNamespace,
		"name": "culvert-" + p.remote.name}}
}

var multiclusterDeployment = object{"apiVersion": "apps/v1", "kind": "Deployment",
	"metadata": object{"namespace": peeringNamespace, "name": "culvert-multicluster"}}

// roll says of each change of the Deployment and of the DaemonSet that its rollout is complete, as
// their controllers do in the end.
func (p *peeringLab) roll() {
	set := object{"apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": object{"namespace": agentNamespace,
		"name": "culvert-node"}}
	// the pace of a stand-in for controllers, until the test ends
	for ; p.t.Context().Err() == nil; time.Sleep(100 * time.Millisecond) {
		for _, o := range []object{p.deployment(), multiclusterDeployment, set} {
			stored, err := p.api.admin.get(o)
			generation := field(stored, "metadata", "generation")
			if err != nil || field(stored, "status", "observedGeneration") == generation {
				continue
			}
			n := field(stored, "spec", "replicas")
			status := object{"observedGeneration": generation, "replicas": n, "updatedReplicas": n, "readyReplicas": n,
				"availableReplicas": n}
			if o["kind"] == "DaemonSet" {
				n := len(kubeNodes)
				status = object{"observedGeneration": generation, "desiredNumberScheduled": n,
					"currentNumberScheduled": n, "updatedNumberScheduled": n,
					"numberReady": n, "numberAvailable": n, "numberMisscheduled": 0}
			}
			p.api.admin.request(http.MethodPatch, pathOf(o)+"/status"+standInManager, "application/apply-patch+yaml",
				object{"apiVersion": o["apiVersion"], "kind": o["kind"], "metadata": o["metadata"], "status": status},
				nil)
		}
	}
}

// controllers stops the gateway when its Deployment is deleted, and the agents when their DaemonSet
// is, and empties and removes the namespaces.
func (p *peeringLab) controllers() {
	p.t.Helper()
	eventuallyWithin(p.t, kubeStartTimeout, p.name+": the Deployment is deleted", func() error {
		if _, err := p.api.admin.get(p.deployment()); err == nil {
			return errNotYet
		}
		return nil
	})
	if err := p.gateway.cmd.Process.Signal(syscall.SIGTERM); err != nil && !errors.Is(err, os.ErrProcessDone) {
		p.t.Fatal(err)
	}
	<-p.gateway.ended
	need.NoError(p.t, p.api.admin.request(http.MethodDelete, kubePath("v1", "Pod", peeringNamespace,
		"")+"?gracePeriodSeconds=0", "application/json", nil, nil))
	daemonSet := object{"apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": object{"name": "culvert-node",
		"namespace": agentNamespace}}
	eventuallyWithin(p.t, kubeStartTimeout, p.name+": the DaemonSet is deleted", func() error {
		if _, err := p.api.admin.get(daemonSet); err == nil {
			return errNotYet
		}
		return nil
	})
	for i := range kubeNodes {
		p.endAgent(i, syscall.SIGTERM)
		p.agents[i] = nil
	}
	for _, namespace := range []string{agentNamespace, peeringNamespace} {
		for _, kind := range []string{"Pod", "Event"} {
			need.NoError(p.t, p.api.admin.request(http.MethodDelete, kubePath("v1", kind, namespace,
				"")+"?gracePeriodSeconds=0", "application/json", nil, nil))
		}
		p.api.finalize(namespace)
	}
}

// everything lists what a cluster has: its objects, and the links, addresses, routes, rules and
// nftables of its nodes.
func (p *peeringLab) everything(t *testing.T) (all []string) {
	t.Helper()
	all = p.api.everything(t)
	for _, node := range p.nodes {
		eventually(t, node.name+" ends its duplicate address detection", func() error {
			if out := node.run("ip", "-o", "address", "show", "tentative"); out != "" {
				return errors.New(out)
			}
			return nil
		})
		for _, command := range []string{"ip -o link", "ip -o address", "ip route show table all", "ip rule",
			"nft list ruleset"} {
			words := strings.Fields(command)
			all = append(all, node.name+" "+command+":\n"+node.run(words[0], words[1:]...))
		}
	}
	return all
}

// requireSame fails unless a cluster has exactly what it had before.
func requireSame(t *testing.T, p *peeringLab, before []string) {
	t.Helper()
	requireAlike(t, p.name, before, p.everything(t))
}

// versions returns generation and spec of all that is installed.
func (p *peeringLab) versions(t *testing.T) (all []string) {
	t.Helper()
	out := p.client.run(os.Getenv(binaryEnv), "kube", "template", "--image=any", "--peering="+p.remote.name)
	for document := range strings.SplitSeq(out, "\n---\n") {
		var o object
		need.NoError(t, yaml.Unmarshal([]byte(document), &o))
		stored := mustObject(t)(p.api.admin.get(o))
		all = append(all, fmt.Sprint(o["kind"], " ", field(o, "metadata", "name"), " ", field(stored, "metadata",
			"generation"), " ", field(stored, "spec")))
	}
	stored := mustObject(t)(p.api.admin.get(p.peering()))
	return append(all, fmt.Sprint("Peering ", field(stored, "metadata", "generation"), " ", field(stored, "spec")))
}

// ping has each pod of a cluster ping a pod of the other one, at its address under the Peering's
// remap.
func (p *peeringLab) ping(to *peeringLab) {
	p.t.Helper()
	all, _ := field(mustObject(p.t)(p.api.admin.get(p.peering())), "spec", "remote", "podCIDRs").([]any)
	if len(all) == 0 {
		p.t.Fatalf("%s: the Peering has no remote pod CIDR", p.name)
	}
	remap, _ := all[0].(object)["remap"].(string)
	at, own := strings.Split(remap, "."), strings.Split(to.pod(&kubeNodes[1], 5), ".")
	if len(at) != 4 {
		p.t.Fatalf("%s: the Peering has remap %q, want an IPv4 CIDR", p.name, remap)
	}
	address := strings.Join([]string{at[0], at[1], own[2], own[3]}, ".")
	for i, pod := range p.pods {
		eventually(p.t, fmt.Sprintf("%s: pod of node%d reaches %s", p.name, i+1, address), func() error {
			out, err := pod.try("", "ping", "-c", "1", "-W", "1", address)
			if err != nil {
				return errors.New(out)
			}
			return nil
		})
	}
}

// TestKubeJoin: two clusters with the same CIDRs are joined, by one command and by messages, and
// separated again. Afterwards both are as they were before.
func TestKubeJoin(t *testing.T) {
	isolated(t, func(t *testing.T) {
		l := newJoinLab(t)
		rome, milan := l.rome, l.milan
		rome.apply(namespace("milan"))
		rome.apply(namespace("shop"))
		milan.apply(namespace("shop"), shop("web", nil, nil))
		before := [2][]string{rome.everything(t), milan.everything(t)}
		both := []string{"--context=admin@rome", "--context=admin@milan"}
		t.Run("refused", func(t *testing.T) { testJoinRefused(t, l) })
		t.Run("join", func(t *testing.T) {
			join := l.start(append([]string{"join", "--image=registry.example/culvert:test", "--expose=LoadBalancer",
				"--yes"}, both...)...)
			milan.kubelet("gateway-1")
			rome.kubelet("gateway-1")
			l.await(join, "rome is connected, 2/2 nodes")
			rome.ping(milan)
			milan.ping(rome)
		})
		t.Run("again", func(t *testing.T) {
			had := [2][]string{rome.versions(t), milan.versions(t)}
			// nothing changes, so it asks no question
			l.must("milan is connected, 2/2 nodes", append([]string{"join"}, both...)...)
			for i, p := range []*peeringLab{rome, milan} {
				if now := p.versions(t); !slices.Equal(now, had[i]) {
					t.Errorf("%s has changed to\n%q\nwant\n%q", p.name, now, had[i])
				}
			}
			out, err := l.culvert(append([]string{"join", "--context=away", "--context=guest", "--context=away", "--yes"},
				append(both, "--context=again")...)...)
			for _, why := range []string{"away: cannot be reached", "guest: you are not allowed to create",
				"admin@rome and again lead to the same cluster", "away is given twice", "not reached"} {
				if !strings.Contains(out, why) {
					t.Errorf("with contexts that cannot be joined: no %q", why)
				}
			}
			if err == nil || err.Error() != "exit status 1" {
				t.Errorf("with contexts that cannot be joined: %v: %s", err, out)
			}
			for i, p := range []*peeringLab{rome, milan} {
				if now := p.versions(t); !slices.Equal(now, had[i]) {
					t.Errorf("with contexts that cannot be joined, %s has changed to\n%q\nwant\n%q", p.name, now,
						had[i])
				}
			}
			need.NoError(t, rome.api.admin.delete(object{"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role",
				"metadata": object{"name": "culvert-milan", "namespace": peeringNamespace}}))
			l.must("", append([]string{"join"}, both...)...)
			if now := rome.versions(t); !slices.Equal(now, had[0]) {
				t.Errorf("rome is not repaired: it has\n%q\nwant\n%q", now, had[0])
			}
		})
		t.Run("another key", func(t *testing.T) { testJoinKey(t, l) })
		t.Run("others apply the same", func(t *testing.T) { testJoinManagers(t, l) })
		testJoinImports(t, l)
		t.Run("push", func(t *testing.T) { testJoinPush(t, l) })
		t.Run("services", func(t *testing.T) { testJoinServices(t, l) })
		t.Run("leave", func(t *testing.T) { testJoinLeave(t, l, before) })
		t.Run("messages", func(t *testing.T) { testJoinMessages(t, l) })
		testJoinImports(t, l)
		if err := rome.gateway.cmd.Process.Kill(); err != nil { // which then removes nothing
			t.Fatal(err)
		}
		<-rome.gateway.ended
		t.Run("leave again", func(t *testing.T) { testJoinLeave(t, l, before) })
		for _, p := range []*peeringLab{rome, milan} {
			p.api.requested(t, "admin")
		}
	}, kubernetes)
}

// testJoinRefused: each command that cannot succeed gives its reason before it changes anything.
func testJoinRefused(t *testing.T, l *joinLab) {
	for want, args := range map[string]string{
		"lead to the same cluster":                                         "join --context=admin@rome --context=again --image=x --yes",
		"away: cannot be reached":                                          "join --context=admin@rome --context=away --image=x --yes",
		"left out: away: cannot be reached":                                "join --context=admin@rome --context=admin@milan --context=away --image=x",
		"--endpoint: it is that of one Server for one Client":              "join --context=admin@rome --context=admin@milan --context=away --endpoint=192.0.2.1:1 --yes",
		"--pairs: \"rome-turin\" is no two clusters":                       "join --context=admin@rome --context=admin@milan --pairs=rome-turin --image=x --yes",
		"no pair is left to join":                                          "join --context=admin@rome --context=admin@milan --context=away --pairs=rome-away --image=x --yes",
		"--context: admin@rome is given twice":                             "join --context=admin@rome --context=admin@rome --image=x --yes",
		"--image: missing":                                                 "join --context=admin@rome --context=admin@milan --yes",
		"refused; check the name of the registry":                          "join --context=admin@rome --context=admin@milan --push=127.0.0.1:1/culvert --yes",
		"no terminal to ask at":                                            "join --context=admin@rome --context=admin@milan --image=x",
		"is the name of no cluster here":                                   "join --context=admin@rome --context=admin@milan --image=x --pod-cidr turin=10.0.0.0/16",
		"remap of 10.0.0.0/8, pods of milan: no private /8":                "join --context=admin@rome --context=admin@milan --image=x --pod-cidr rome=10.0.0.0/8 --pod-cidr milan=10.0.0.0/8 --avoid 172.16.0.0/12",
		"culvert: rome: --imports: there is no namespace nowhere; make it": "join --context=admin@rome --context=admin@milan --image=x --imports=rome=nowhere",
		"--imports: \"turin\" is the name of no cluster here":              "join --context=admin@rome --context=admin@milan --image=x --imports=turin=milan",
		"there is no Peering turin":                                        "leave --context=admin@rome --peer turin --yes",
		"nothing was removed there: run the same command when it":          "leave --context=away --all --yes",
	} {
		out, err := l.culvert(strings.Fields(args)...)
		if !strings.Contains(out, want) || (err == nil) != strings.HasPrefix(want, "there is no") {
			t.Errorf("%s: %v: %s, want %q", args, err, out, want)
		}
	}
}

// testJoinPush: both clusters get the image that a registry has after culvert join --push, by its
// digest. A registry that refuses keeps them as they are.
func testJoinPush(t *testing.T, l *joinLab) {
	listener, err := l.desk.listen("tcp4", "127.0.0.1:5000")
	need.NoError(t, err)
	images := registry.New(registry.Logger(log.New(io.Discard, "", 0)))
	refuses := atomic.Bool{}
	refuses.Store(true)
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if refuses.Load() && r.Method != http.MethodGet {
			w.WriteHeader(http.StatusForbidden)
			return
		}
		images.ServeHTTP(w, r)
	})}
	go server.Serve(listener)
	t.Cleanup(func() { server.Close() })
	push := []string{"join", "--context=admin@rome", "--context=admin@milan", "--push=127.0.0.1:5000/net/culvert:1",
		"--yes"}
	had := [2][]string{l.rome.versions(t), l.milan.versions(t)}
	if out, err := l.culvert(push...); err == nil || !strings.Contains(out, "log in with docker login 127.0.0.1:5000") {
		t.Errorf("a registry that refuses: %v: %s", err, out)
	}
	for i, p := range []*peeringLab{l.rome, l.milan} {
		if now := p.versions(t); !slices.Equal(now, had[i]) {
			t.Errorf("%s has changed to\n%q\nwant\n%q", p.name, now, had[i])
		}
	}
	refuses.Store(false)
	l.must("pushing 127.0.0.1:5000/net/culvert:1@sha256:", push...)
	has := httptest.NewRecorder()
	images.ServeHTTP(has, httptest.NewRequest(http.MethodGet, "/v2/net/culvert/manifests/1", nil))
	want := fmt.Sprintf("127.0.0.1:5000/net/culvert:1@sha256:%x", sha256.Sum256(has.Body.Bytes()))
	for _, p := range []*peeringLab{l.rome, l.milan} {
		d := mustObject(t)(p.api.admin.get(p.deployment()))
		container := field(d, "spec", "template", "spec", "containers").([]any)[0].(map[string]any)
		if has.Code != http.StatusOK || container["image"] != want {
			t.Errorf("%s has the image %v, want %s; the registry says %d", p.name, container["image"], want, has.Code)
		}
	}
}

// testJoinManagers: after culvert join, applying the output of culvert kube template causes no
// conflict and changes nothing. A second replica can be added by join and removed again, also if
// kubectl has applied the objects in between.
func testJoinManagers(t *testing.T, l *joinLab) {
	milan := l.milan
	had := milan.versions(t)
	milan.applyTemplate("registry.example/culvert:test", "", "--expose=LoadBalancer")
	if now := milan.versions(t); !slices.Equal(now, had) {
		t.Errorf("culvert kube template changes what culvert join has applied:\n%q\nbefore\n%q", now, had)
	}
	join := []string{"join", "--context=admin@rome", "--context=admin@milan", "--yes"}
	budget := object{"apiVersion": "policy/v1", "kind": "PodDisruptionBudget",
		"metadata": object{"name": "culvert-rome", "namespace": peeringNamespace}}
	l.must("", append(join, "--replicas=2")...)
	mustObject(t)(milan.api.admin.get(budget))
	stored := mustObject(t)(milan.api.admin.get(milan.deployment()))
	if label := field(stored, "spec", "template", "metadata", "labels", "culvert.io/active"); label != "false" {
		t.Errorf("pods are created with the label culvert.io/active %v, want false", label)
	}
	milan.applyTemplate("registry.example/culvert:test", "&force=true", "--expose=LoadBalancer", "--replicas=2")
	l.must("", append(join, "--replicas=1")...)
	if n := field(mustObject(t)(milan.api.admin.get(milan.deployment())), "spec", "replicas"); n != 1.0 {
		t.Errorf("%v replicas, want 1", n)
	}
}

// applyTemplate applies the output of culvert kube template as kubectl apply --server-side does;
// force is "" or "&force=true".
func (p *peeringLab) applyTemplate(image, force string, args ...string) {
	p.t.Helper()
	out := p.client.run(os.Getenv(binaryEnv), append([]string{"kube", "template", "--image=" + image,
		"--peering=" + p.remote.name}, args...)...)
	for document := range strings.SplitSeq(out, "\n---\n") {
		var o object
		need.NoError(p.t, yaml.Unmarshal([]byte(document), &o))
		if err := p.api.admin.request(http.MethodPatch, pathOf(o)+"?fieldManager=kubectl"+force,
			"application/apply-patch+yaml", o, nil); err != nil {
			p.t.Errorf("apply %v %v: %v", o["kind"], field(o, "metadata", "name"), err)
		}
	}
}

// testJoinImports has rome import a Service of milan's.
func testJoinImports(t *testing.T, l *joinLab) {
	t.Helper()
	l.must("", "join", "--context=admin@rome", "--context=admin@milan", "--imports=rome=milan", "--yes")
	l.milan.apply(shop("web", object{"culvert/export": "true"}, nil))
	l.rome.awaitImport("milan", "web-shop", true)
}

// testJoinServices: culvert join --services shares a namespace, with all that this takes; without
// the flag that stays, and "none" ends it. At the end, rome has a Service of milan's.
func testJoinServices(t *testing.T, l *joinLab) {
	join := []string{"join", "--context=admin@rome", "--context=admin@milan", "--yes"}
	l.must("nothing is shared there until somebody makes it", append(join, "--services=shop,nowhere")...)
	l.must("", append(join, "--services=shop")...)
	labs := []*multiclusterLab{{peeringLab: l.rome}, {peeringLab: l.milan}}
	shared := func(want any) {
		t.Helper()
		for _, m := range labs {
			got := field(mustObject(t)(m.api.admin.get(m.peering())), "spec", "services")
			if !reflect.DeepEqual(got, want) {
				t.Errorf("%s shares %v, want %v", m.name, got, want)
			}
		}
	}
	shop := object{"export": []any{"shop"}, "import": []any{"shop"}}
	shared(shop)
	for _, m := range labs {
		m.awaitAccount()
		m.start()
		m.podOf(multiclusterDeployment, "multicluster-1")
	}
	l.milan.apply(shopSlice("web", l.milan.pod(&kubeNodes[0], 5)), serviceExport("web"))
	rome := labs[0]
	rome.awaitAddress("web")
	l.must("shares Services", join...)
	shared(shop)
	none := l.start(append(join, "--services=none")...)
	for _, m := range []*multiclusterLab{labs[1], rome} { // the Server first
		m.endController()
	}
	l.await(none, "of no namespace")
	shared(nil)
	rome.awaitNoImport("web")
	labs[1].awaitNoImport("web")
	l.must("", append(join, "--services=shop")...)
	for _, m := range labs {
		m.awaitAccount()
		m.start()
		m.podOf(multiclusterDeployment, "multicluster-1")
	}
	rome.awaitAddress("web")
}

// endController does what the controllers of a cluster do when nothing is left for culvert
// multicluster to do: it ends the pod, and removes what its ServiceImports owned.
func (m *multiclusterLab) endController() {
	m.t.Helper()
	deployment := object{"apiVersion": "apps/v1", "kind": "Deployment",
		"metadata": object{"name": "culvert-multicluster", "namespace": peeringNamespace}}
	eventuallyWithin(m.t, kubeStartTimeout, m.name+": no pod of culvert multicluster is wanted", func() error {
		o, err := m.api.admin.get(deployment)
		if err == nil && field(o, "spec", "replicas") != 0.0 {
			err = errNotYet
		}
		return err
	})
	need.NoError(m.t, m.controller.cmd.Process.Signal(syscall.SIGTERM))
	<-m.controller.ended
	remove := func(kind, namespace, selector string) {
		m.t.Helper()
		need.NoError(m.t, m.api.admin.request(http.MethodDelete, kubePath("v1", kind, namespace, "")+
			"?gracePeriodSeconds=0&labelSelector="+selector, "application/json", nil, nil))
	}
	remove("Pod", peeringNamespace, "app=culvert-multicluster")
	m.awaitNoImport("web")
	remove("Service", "shop", "culvert.io/multicluster")
	eventuallyWithin(m.t, kubeStartTimeout, m.name+": nothing of culvert multicluster is left", func() error {
		if _, err := m.api.admin.get(deployment); err == nil {
			return errNotYet
		}
		return nil
	})
}

// testJoinLeave: culvert leave removes everything, although its first run is killed. A cluster that
// cannot be reached does not keep it from the other one.
func testJoinLeave(t *testing.T, l *joinLab, before [2][]string) {
	rome, milan := l.rome, l.milan
	first := l.start("leave", "--context=admin@rome", "--all", "--yes")
	eventually(t, "the Peering is deleted", func() error {
		if _, err := rome.api.admin.get(rome.peering()); err == nil {
			return errNotYet
		}
		return nil
	})
	first.cmd.Process.Kill()
	<-first.ended
	again := l.start("leave", "--context=admin@rome", "--context=admin@milan", "--all", "--yes")
	rome.controllers()
	milan.controllers()
	l.await(again, "admin@milan: done")
	if _, err := milan.api.admin.get(serviceExport("web")); err == nil {
		if out := again.output(); !strings.Contains(strings.Join(strings.Fields(out), " "), "admin@milan: the kinds "+
			"ServiceExport and ServiceImport stay, because there is ServiceExport shop/web") {
			t.Errorf("milan exports a Service, and its kind goes: %s", out)
		}
		need.NoError(t, milan.api.admin.delete(serviceExport("web")))
		l.must("admin@milan: done", "leave", "--context=admin@milan", "--all", "--yes")
		need.NoError(t, milan.api.admin.delete(shopSlice("web")))
	}
	for i, p := range []*peeringLab{rome, milan} {
		requireSame(t, p, before[i])
	}
	if out, err := l.culvert("leave", "--context=admin@rome", "--context=away", "--all", "--yes"); err == nil ||
		!strings.Contains(out, "admin@rome: done") || !strings.Contains(out, "away: cannot be reached") {
		t.Errorf("with a cluster that cannot be reached: %v: %s", err, out)
	}
}
