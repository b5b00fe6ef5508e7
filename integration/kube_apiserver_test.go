package integration

import (
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"sigs.k8s.io/yaml"

	"culvert/integration/lab"
	"culvert/integration/need"
)

// kubeAssetsEnv names the folder with etcd and kube-apiserver, under the name that other projects
// use. make test-kube builds them.
const kubeAssetsEnv = "KUBEBUILDER_ASSETS"

// kubernetes probes for etcd, kube-apiserver and the programs that look at clusters.
var kubernetes = probe{"kubernetes", func(t testing.TB) error {
	dir := os.Getenv(kubeAssetsEnv)
	if dir == "" {
		return fmt.Errorf("%s names no folder with etcd and kube-apiserver; see make test-kube", kubeAssetsEnv)
	}
	for _, name := range []string{"etcd", "kube-apiserver"} {
		if _, err := os.Stat(filepath.Join(dir, name)); err != nil {
			return err
		}
	}
	return need.Find(t, "nft", "ping", "ss", "nsenter")
}}

const (
	adminToken   = "admin"
	kubeAPIPort  = 6443
	auditPolicy  = "apiVersion: audit.k8s.io/v1\nkind: Policy\nomitStages: [RequestReceived]\nrules: [{level: Metadata}]\n"
	kubeServices = "10.96.0.0/16"
)

// kubeAPI is an API server with RBAC and an audit log, and its etcd, in a host.
type kubeAPI struct {
	host  *peerHost
	dir   string
	base  string // URL
	roots []byte // PEM certificates that clients trust
	admin *kubeClient
	relay *kubeRelay // through which gateways reach it

	etcd, server *peerProcess
	serverArgs   []string
	starts       []kubeStart
}

// kubeStart is the time in which an API server already answers but has not read the roles yet.
type kubeStart struct{ began, ready time.Time }

// kubeStartTimeout limits how long etcd or an API server may take to start, which needs much CPU
// time.
const kubeStartTimeout = time.Minute

// startKubeAPI starts etcd and the API server at an address of the host, and returns when the
// server is ready.
func startKubeAPI(h *peerHost, address string, flags ...string) *kubeAPI {
	h.t.Helper()
	k := &kubeAPI{host: h, dir: h.t.TempDir(), base: fmt.Sprintf("https://%s:%d", address, kubeAPIPort)}
	k.write("audit.yaml", auditPolicy)
	k.write("tokens.csv", adminToken+",admin,admin,system:masters\n")
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	need.NoError(h.t, err)
	k.write("accounts.key",
		string(pem.EncodeToMemory(&pem.Block{Type: "RSA PRIVATE KEY", Bytes: x509.MarshalPKCS1PrivateKey(key)})))

	assets := os.Getenv(kubeAssetsEnv)
	k.etcd = h.start(nil, filepath.Join(assets, "etcd"), "--data-dir="+k.path("etcd"), "--unsafe-no-fsync",
		"--log-level=warn",
		"--listen-client-urls=http://127.0.0.1:2379", "--advertise-client-urls=http://127.0.0.1:2379",
		"--listen-peer-urls=http://127.0.0.1:2380", "--initial-advertise-peer-urls=http://127.0.0.1:2380",
		"--initial-cluster=default=http://127.0.0.1:2380")
	eventuallyWithin(h.t, kubeStartTimeout, h.name+": etcd", func() error {
		conn, err := h.dial("tcp4", "127.0.0.1:2379")
		if err == nil {
			conn.Close()
		}
		return err
	})
	k.serverArgs = []string{
		"--etcd-servers=http://127.0.0.1:2379", "--bind-address=" + address, "--advertise-address=" + address,
		fmt.Sprintf("--secure-port=%d", kubeAPIPort), "--cert-dir=" + k.path("certificates"),
		"--service-cluster-ip-range=" + kubeServices, "--endpoint-reconciler-type=none",
		"--service-account-issuer=https://kubernetes.default.svc", "--service-account-key-file=" +
			k.path("accounts.key"),
		"--service-account-signing-key-file=" + k.path("accounts.key"), "--token-auth-file=" + k.path("tokens.csv"),
		"--authorization-mode=RBAC", "--audit-policy-file=" + k.path("audit.yaml"),
		"--audit-log-path=" + k.path("audit.log"),
		"--allow-privileged=true", // as in every cluster with Liqo
		// No controller runs that makes the default account of each namespace.
		"--disable-admission-plugins=ServiceAccount",
	}
	k.serverArgs = append(k.serverArgs, flags...) // of two values the last one counts
	k.relay = startKubeRelay(h, address)
	k.startServer()
	return k
}

// startServer starts the API server, for the first time or again.
func (k *kubeAPI) startServer() {
	k.host.t.Helper()
	began := time.Now()
	k.server = k.host.start(nil, filepath.Join(os.Getenv(kubeAssetsEnv), "kube-apiserver"), k.serverArgs...)
	eventuallyWithin(k.host.t, kubeStartTimeout, k.host.name+": API server", func() (err error) {
		need.NoError(k.host.t, k.server.running())
		need.NoError(k.host.t, k.etcd.running())
		if k.roots, err = os.ReadFile(k.path("certificates/apiserver.crt")); err != nil {
			return err
		}
		k.admin = newKubeClient(k.host, k.base, k.roots, adminToken)
		return k.admin.request(http.MethodGet, "/readyz", "", nil, nil)
	})
	k.starts = append(k.starts, kubeStart{began, time.Now()})
}

// starting reports whether the server was starting at that time. A server that starts forbids
// everything until it has read the roles.
func (k *kubeAPI) starting(at time.Time) bool {
	return slices.ContainsFunc(k.starts, func(s kubeStart) bool { return at.After(s.began) && at.Before(s.ready) })
}

func (k *kubeAPI) path(name string) string { return filepath.Join(k.dir, name) }

func (k *kubeAPI) write(name, text string) {
	k.host.t.Helper()
	need.NoError(k.host.t, os.WriteFile(k.path(name), []byte(text), 0o600))
}

// token returns a token of a ServiceAccount.
func (k *kubeAPI) token(namespace, account string) (string, error) {
	var answer struct{ Status struct{ Token string } }
	request := object{"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest",
		"spec": object{"expirationSeconds": 3600}}
	err := k.admin.request(http.MethodPost, kubePath("v1", "ServiceAccount", namespace, account)+"/token",
		"application/json", request, &answer)
	return answer.Status.Token, err
}

// guest returns the token of a user without rights.
func (k *kubeAPI) guest() string {
	k.host.t.Helper()
	need.NoError(k.host.t, k.admin.apply(object{"apiVersion": "v1", "kind": "ServiceAccount",
		"metadata": object{"name": "guest", "namespace": "default"}}))
	token, err := k.token("default", "guest")
	need.NoError(k.host.t, err)
	return token
}

// boundToken returns a token of a ServiceAccount that is bound to a Pod, as kubelet gets it.
func (k *kubeAPI) boundToken(pod object, account string) (string, error) {
	stored, err := k.admin.get(pod)
	if err != nil {
		return "", err
	}
	var answer struct{ Status struct{ Token string } }
	request := object{"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest",
		"spec": object{"expirationSeconds": 3600,
			"boundObjectRef": object{"kind": "Pod", "apiVersion": "v1", "name": field(pod, "metadata", "name"),
				"uid": field(stored, "metadata", "uid")}}}
	namespace, _ := field(pod, "metadata", "namespace").(string)
	err = k.admin.request(http.MethodPost, kubePath("v1", "ServiceAccount", namespace, account)+"/token",
		"application/json", request, &answer)
	return answer.Status.Token, err
}

// kubeconfigOf writes the kubeconfig of a ServiceAccount, and returns its path.
func (k *kubeAPI) kubeconfigOf(namespace, account string) string {
	k.host.t.Helper()
	token, err := k.token(namespace, account)
	need.NoError(k.host.t, err)
	return k.kubeconfig(token)
}

// kubeconfig writes a file with which a client outside a pod uses a token, and returns its path.
// Every user may read it.
func (k *kubeAPI) kubeconfig(token string) string {
	k.host.t.Helper()
	text, err := yaml.Marshal(object{
		"apiVersion": "v1", "kind": "Config", "current-context": "lab",
		"clusters": []object{{"name": "lab", "cluster": object{"server": "https://" + k.relay.listener.Addr().String(),
			"certificate-authority-data": k.roots}}},
		"users":    []object{{"name": "lab", "user": object{"token": token}}},
		"contexts": []object{{"name": "lab", "context": object{"cluster": "lab", "user": "lab"}}},
	})
	need.NoError(k.host.t, err)
	file := filepath.Join(k.host.t.TempDir(), "kubeconfig")
	writeReadable(k.host.t, file, string(text))
	return file
}

// auditEvent is a line of the audit log.
type auditEvent struct {
	Verb, RequestURI string
	UserAgent        string
	User             struct{ Username string }
	ObjectRef        struct{ Resource, Subresource, APIGroup, Namespace, Name string }
	ResponseStatus   struct {
		Code    int
		Message string
	}
	Received time.Time `json:"requestReceivedTimestamp"`
}

// audit returns what a user has requested from the API server, with the answers.
func (k *kubeAPI) audit(t *testing.T, user string) (events []auditEvent) {
	t.Helper()
	log, err := lab.ReadLines(k.path("audit.log"))
	need.NoError(t, err)
	for line := range strings.Lines(log) {
		var e auditEvent
		if err := json.Unmarshal([]byte(line), &e); err != nil {
			t.Fatalf("%v in %s", err, line)
		}
		if e.User.Username == user {
			events = append(events, e)
		}
	}
	return events
}

// requested returns what a user has requested, as "verb resource" or "verb resource/subresource".
// It fails the test if the API server forbade something whose URI contains none of the texts in
// but.
func (k *kubeAPI) requested(t *testing.T, user string, but ...string) map[string]bool {
	t.Helper()
	all := map[string]bool{}
	for _, e := range k.audit(t, user) {
		excepted := slices.ContainsFunc(but, func(part string) bool { return strings.Contains(e.RequestURI, part) })
		if e.ResponseStatus.Code == http.StatusForbidden && !k.starting(e.Received) && !excepted {
			t.Errorf("%s: %s %s was forbidden", user, e.Verb, e.RequestURI)
		}
		all[strings.TrimSuffix(e.Verb+" "+e.ObjectRef.Resource+"/"+e.ObjectRef.Subresource, "/")] = true
	}
	return all
}

// requireUsed fails for each right that a user has and has not used.
func requireUsed(t *testing.T, user string, used map[string]bool, rights ...string) {
	t.Helper()
	for _, right := range rights {
		if !used[right] {
			t.Errorf("%s has never used its right to %s", user, right)
		}
	}
}

// awaitEvent waits until a namespace has an Event for which matches returns true.
func (k *kubeAPI) awaitEvent(t *testing.T, limit time.Duration, namespace, what string,
	matches func(e object, message string) bool) {
	t.Helper()
	eventuallyWithin(t, limit, "an Event: "+what, func() error {
		events, err := k.admin.list("v1", "Event", namespace)
		var messages []string
		for _, e := range events {
			message, _ := e["message"].(string)
			if matches(e, message) {
				return nil
			}
			messages = append(messages, message)
		}
		return errors.Join(err, fmt.Errorf("there are %q", messages))
	})
}

// withinRole returns the rights of the gateway's role as "verb group/resource".
func withinRole(t *testing.T) map[string]bool {
	t.Helper()
	rights := make(map[string]bool)
	for _, r := range readYAML(t, "testdata/liqo-crds/liqo-gateway-ClusterRole.rules.yaml")["rules"].([]any) {
		for _, group := range field(r.(object), "apiGroups").([]any) {
			for _, resource := range field(r.(object), "resources").([]any) {
				for _, verb := range field(r.(object), "verbs").([]any) {
					rights[fmt.Sprintf("%s %s/%s", verb, group, resource)] = true
				}
			}
		}
	}
	return rights
}

// right returns what an event asked for, in the same form.
func (e *auditEvent) right() string {
	return strings.TrimSuffix(fmt.Sprintf("%s %s/%s/%s", e.Verb, e.ObjectRef.APIGroup, e.ObjectRef.Resource,
		e.ObjectRef.Subresource), "/")
}

// finalize removes a namespace that is being deleted, as the controller of namespaces does when
// nothing is in it any more.
func (k *kubeAPI) finalize(namespace string) {
	k.host.t.Helper()
	eventuallyWithin(k.host.t, kubeStartTimeout, k.host.name+": namespace "+namespace, func() error {
		o := object{"apiVersion": "v1", "kind": "Namespace", "metadata": object{"name": namespace}}
		stored, err := k.admin.get(o)
		if refused := new(kubeError); errors.As(err, &refused) && refused.Code == http.StatusNotFound {
			return nil
		}
		if err != nil || field(stored, "metadata", "deletionTimestamp") == nil {
			return fmt.Errorf("it exists and is not being deleted (%v)", err)
		}
		stored["spec"] = object{"finalizers": []string{}}
		k.admin.request(http.MethodPut, pathOf(o)+"/finalize", "application/json", stored, nil)
		return errNotYet
	})
}

// everything lists the objects of a cluster, but for Events and Leases.
func (k *kubeAPI) everything(t *testing.T) (all []string) {
	t.Helper()
	var groups struct {
		Groups []struct{ PreferredVersion struct{ GroupVersion string } }
	}
	get := func(path string, answer any) {
		need.NoError(t, k.admin.request(http.MethodGet, path, "", nil, answer))
	}
	get("/apis", &groups)
	paths := []string{"/api/v1"}
	for _, g := range groups.Groups {
		paths = append(paths, "/apis/"+g.PreferredVersion.GroupVersion)
	}
	for _, path := range paths {
		var list struct {
			Resources []struct {
				Name  string
				Verbs []string
			}
		}
		get(path, &list)
		for _, r := range list.Resources {
			if !slices.Contains(r.Verbs, "list") || r.Name == "events" || r.Name == "leases" {
				continue
			}
			var objects struct{ Items []object }
			get(path+"/"+r.Name, &objects)
			for _, o := range objects.Items {
				all = append(all, fmt.Sprint(path, " ", r.Name, " ", field(o, "metadata", "namespace"), "/",
					field(o, "metadata", "name")))
			}
		}
	}
	return all
}

// requireAlike fails unless a cluster has exactly what it had before.
func requireAlike(t *testing.T, name string, before, after []string) {
	t.Helper()
	for _, x := range after {
		if !slices.Contains(before, x) {
			t.Errorf("%s has what it did not have before: %s", name, x)
		}
	}
	for _, x := range before {
		if !slices.Contains(after, x) {
			t.Errorf("%s lacks what it had before: %s", name, x)
		}
	}
}
