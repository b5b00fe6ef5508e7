package integration

import (
	"errors"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"sigs.k8s.io/yaml"

	"culvert/integration/need"
)

// everybodysRights are those of each account of a cluster, by Kubernetes' own ClusterRoles.
const everybodysRights = `
authentication.k8s.io/selfsubjectreviews *: create
authorization.k8s.io/selfsubjectaccessreviews *: create
authorization.k8s.io/selfsubjectrulesreviews *: create`

// tokenRights are what the tokens of culvert's accounts allow, as docs/kubernetes.md says:
// GROUP/RESOURCE, then * for the whole cluster, or NAMESPACE or NAMESPACE/NAME. Discovery does not
// have serviceimports/finalizers, which culvert-multicluster may update.
var tokenRights = map[string]string{
	"culvert/culvert-milan": `
/events culvert: create
/nodes *: list watch
/pods *: list watch
/pods culvert/any: patch
/secrets culvert/culvert-milan: get list update watch
/services *: list watch
coordination.k8s.io/leases culvert/culvert-milan: get update
coordination.k8s.io/leases culvert: create
culvert.io/peerexports culvert/milan: get update
culvert.io/peerings culvert: list watch
culvert.io/peerings/status culvert/milan: update
culvert.io/tunnelnodes culvert-nodes: list watch
discovery.k8s.io/endpointslices *: list watch
multicluster.x-k8s.io/serviceexports *: list watch
networking.k8s.io/servicecidrs *: list`,
	"culvert/culvert-multicluster": `
/events culvert: create
/namespaces *: list watch
/pods culvert: list
/services */any: delete update
/services *: create list watch
coordination.k8s.io/leases culvert/culvert-multicluster: get update
coordination.k8s.io/leases culvert: create
culvert.io/peerexports culvert: create list watch
culvert.io/peerings culvert: list watch
discovery.k8s.io/endpointslices */any: delete update
discovery.k8s.io/endpointslices *: create list watch
multicluster.x-k8s.io/serviceexports *: list watch
multicluster.x-k8s.io/serviceexports/status */any: update
multicluster.x-k8s.io/serviceimports */any: delete update
multicluster.x-k8s.io/serviceimports *: create list watch
multicluster.x-k8s.io/serviceimports/status */any: update
networking.k8s.io/servicecidrs *: list`,
	"culvert-nodes/culvert-node": `
/events culvert-nodes: create
/namespaces /culvert-nodes: get
/nodes *: list watch
/services *: list watch
apps/daemonsets culvert-nodes/culvert-node: get
culvert.io/peerings culvert: list watch
culvert.io/tunnelnodes culvert-nodes/any: get update
culvert.io/tunnelnodes culvert-nodes: create
culvert.io/tunnelnodes/status culvert-nodes/any: update`,
}

// TestKubeStolenTokens: whoever has a token of culvert may do exactly what docs/kubernetes.md
// lists. Every verb is tried by a real request, on every resource that the API server has, in every
// kind of namespace and in the whole cluster. And what a gateway may write of pods is the label of
// its own.
func TestKubeStolenTokens(t *testing.T) {
	isolated(t, func(t *testing.T) {
		p := newPeeringLab(t, &kubeRome, &kubeMilan)
		for document := range strings.SplitSeq(p.client.run(os.Getenv(binaryEnv), "multicluster", "crds"), "\n---\n") {
			var o object
			need.NoError(t, yaml.Unmarshal([]byte(document), &o))
			p.apply(o)
		}
		p.apply(namespace("shop"), namespace("stranger"))
		p.services = object{"import": []string{"shop"}, "export": []string{"shop"}}
		values := filepath.Join(t.TempDir(), "values.yaml")
		writeReadable(t, values, "multicluster: {enabled: true}\n")
		p.install("--values=" + values)
		p.api.awaitRight(t, "system:serviceaccount:culvert:culvert-multicluster", "create", "/services", "")
		everything := p.api.discovered(t)
		for account, want := range tokenRights {
			t.Run(strings.ReplaceAll(account, "/", " "), func(t *testing.T) {
				namespace, name, _ := strings.Cut(account, "/")
				token, err := p.api.token(namespace, name)
				need.NoError(t, err)
				got := rightsOf(t, newKubeClient(p.api.host, p.api.base, p.api.roots, token), everything)
				all := strings.Split(strings.TrimSpace(want+everybodysRights), "\n")
				slices.Sort(all)
				requireAlike(t, "the token of "+account, all, got)
			})
		}
		t.Run("special verbs", func(t *testing.T) { testSpecialVerbs(t, p) })
		t.Run("pods", func(t *testing.T) { testGatewayPods(t, p) })
	}, kubernetes)
}

// An apiResource is one of an API server, or a subresource, with the path of its group.
type apiResource struct {
	group, path, name string
	namespaced        bool
}

func (r apiResource) String() string { return r.group + "/" + r.name }

// discovered returns all that discovery lists.
func (k *kubeAPI) discovered(t *testing.T) (all []apiResource) {
	t.Helper()
	var groups struct {
		Groups []struct {
			Name     string
			Versions []struct{ GroupVersion string }
		}
	}
	need.NoError(t, k.admin.request(http.MethodGet, "/apis", "", nil, &groups))
	add := func(group, path string) {
		var list struct {
			Resources []struct {
				Name       string
				Namespaced bool
			}
		}
		need.NoError(t, k.admin.request(http.MethodGet, path, "", nil, &list))
		for _, r := range list.Resources {
			all = append(all, apiResource{group, path, r.Name, r.Namespaced})
		}
	}
	add("", "/api/v1")
	for _, g := range groups.Groups {
		add(g.Name, "/apis/"+g.Versions[0].GroupVersion) // RBAC knows no versions
	}
	if len(all) < 100 {
		t.Fatalf("discovery has %d resources only", len(all))
	}
	return all
}

// A tokenTry is a request that a token may or may not make.
type tokenTry struct {
	of                    apiResource
	verb, namespace, name string
}

// tokenNames are the names that rights mention, and one that none does.
var tokenNames = []string{"milan", "culvert-milan", "culvert-multicluster", "culvert-node", "culvert-nodes", "other"}

// rightsOf returns what a client may do, in the form of tokenRights, sorted.
func rightsOf(t *testing.T, client *kubeClient, everything []apiResource) []string {
	t.Helper()
	tries := make(chan tokenTry)
	var mu sync.Mutex
	may := map[string]map[string]map[string]bool{} // verbs by place and resource
	n := 0
	var tasks sync.WaitGroup
	for range 8 {
		tasks.Go(func() {
			for x := range tries {
				allowed := x.ask(t, client)
				mu.Lock()
				n++
				if of, place := x.of.String(), strings.TrimSuffix(x.namespace+"/"+x.name, "/"); allowed {
					if may[of] == nil {
						may[of] = map[string]map[string]bool{}
					}
					if may[of][x.verb] == nil {
						may[of][x.verb] = map[string]bool{}
					}
					may[of][x.verb][place] = true
				}
				mu.Unlock()
			}
		})
	}
	namespaces := []string{"culvert", "culvert-nodes", "kube-system", "shop", "stranger"}
	for _, r := range everything {
		in := []string{""}
		if r.namespaced {
			in = namespaces
		}
		for _, namespace := range in {
			for _, verb := range []string{"list", "watch", "create", "deletecollection"} {
				if !strings.Contains(r.name, "/") {
					tries <- tokenTry{r, verb, namespace, ""}
				}
			}
			for _, name := range tokenNames {
				for _, verb := range []string{"get", "update", "patch", "delete"} {
					tries <- tokenTry{r, verb, namespace, name}
				}
				if strings.Contains(r.name, "/") {
					tries <- tokenTry{r, "create", namespace, name}
					continue
				}
				for _, verb := range []string{"list", "watch", "deletecollection"} {
					tries <- tokenTry{r, verb, namespace, name}
				}
			}
		}
		if r.namespaced && !strings.Contains(r.name, "/") {
			tries <- tokenTry{r, "list", "", ""}
			tries <- tokenTry{r, "watch", "", ""}
		}
	}
	close(tries)
	tasks.Wait()
	t.Logf("%d requests", n)
	lines := map[string][]string{}
	for of, verbs := range may {
		for verb, places := range verbs {
			for place := range summary(places, namespaces) {
				lines[of+" "+place] = append(lines[of+" "+place], verb)
			}
		}
	}
	var all []string
	for where, verbs := range lines {
		slices.Sort(verbs)
		all = append(all, where+": "+strings.Join(verbs, " "))
	}
	slices.Sort(all)
	return all
}

// summary says of all names that they are any, and of all namespaces that they are the whole
// cluster.
func summary(places map[string]bool, namespaces []string) map[string]bool {
	all := map[string]bool{}
	for place := range places {
		namespace, name, named := strings.Cut(place, "/")
		if named && places[namespace] {
			continue // it is part of a whole list
		}
		if named && !slices.ContainsFunc(tokenNames, func(n string) bool { return !places[namespace+"/"+n] }) {
			name = "any"
		}
		if named {
			place = namespace + "/" + name
		}
		all[place] = true
	}
	for _, end := range []string{"", "/any"} {
		everywhere := !slices.ContainsFunc(namespaces, func(n string) bool { return !all[n+end] })
		if all[""+end] || everywhere {
			for _, n := range append(namespaces, "") {
				delete(all, n+end)
			}
			all["*"+end] = true
		}
	}
	return all
}

// ask makes the request, which changes nothing, and returns whether the API server has authorized
// it. What comes after that, such as an error about its content, does not matter.
func (x tokenTry) ask(t *testing.T, client *kubeClient) bool {
	path := x.of.path
	if x.namespace != "" {
		path += "/namespaces/" + x.namespace
	}
	name, sub, _ := strings.Cut(x.of.name, "/")
	if path += "/" + name; x.of.name == "namespaces" && x.namespace != "" {
		path = x.of.path + "/namespaces/" + x.namespace
	}
	collection := x.verb == "list" || x.verb == "watch" || x.verb == "deletecollection"
	if x.name != "" && !collection {
		path += "/" + x.name
	}
	if sub != "" {
		path += "/" + sub
	}
	method, contentType, query := http.MethodGet, "application/json", "?dryRun=All"
	var body any
	switch x.verb {
	case "get", "list":
		query = "?"
	case "watch":
		query = "?watch=true&timeoutSeconds=1"
	case "create":
		method, body = http.MethodPost, object{}
	case "update":
		method, body = http.MethodPut, object{}
	case "patch":
		method, body, contentType = http.MethodPatch, object{}, "application/merge-patch+json"
	case "delete", "deletecollection":
		method = http.MethodDelete
	}
	if path += query; x.name != "" && collection { // some rights are for lists of one name
		path += "&fieldSelector=metadata.name=" + x.name
	}
	err := client.request(method, path, contentType, body, nil)
	refused := new(kubeError)
	if err != nil && !errors.As(err, &refused) {
		if x.verb != "watch" { // what comes is no single object
			t.Errorf("%v: %v", x, err)
		}
		return true
	}
	return !(refused.Code == http.StatusForbidden && strings.Contains(refused.Message, "cannot "+x.verb+" "))
}

// testSpecialVerbs tries what no request about a resource shows.
func testSpecialVerbs(t *testing.T, p *peeringLab) {
	for account := range tokenRights {
		namespace, name, _ := strings.Cut(account, "/")
		user := "system:serviceaccount:" + namespace + ":" + name
		for _, right := range []string{"impersonate /users", "impersonate /groups", "impersonate /serviceaccounts",
			"impersonate authentication.k8s.io/uids", "impersonate authentication.k8s.io/userextras",
			"bind rbac.authorization.k8s.io/roles", "bind rbac.authorization.k8s.io/clusterroles",
			"escalate rbac.authorization.k8s.io/roles", "escalate rbac.authorization.k8s.io/clusterroles",
			"approve certificates.k8s.io/signers", "sign certificates.k8s.io/signers", "attest certificates.k8s.io/signers",
			"create /serviceaccounts/token", "get /nodes/proxy", "create /pods/exec", "create /pods/ephemeralcontainers",
			"update /pods/resize", "* */*"} {
			verb, of, _ := strings.Cut(right, " ")
			for _, in := range []string{"", "culvert", "culvert-nodes", "kube-system", "shop"} {
				if p.api.may(t, user, verb, of, in) {
					t.Errorf("%s may %s in %q", account, right, in)
				}
			}
		}
		token, err := p.api.token(namespace, name)
		need.NoError(t, err)
		client := newKubeClient(p.api.host, p.api.base, p.api.roots, token)
		for _, path := range []string{"/metrics", "/logs/", "/debug/pprof/", "/configz", "/flagz"} {
			refused := new(kubeError)
			if err := client.request(http.MethodGet, path, "", nil, nil); !errors.As(err, &refused) ||
				refused.Code != http.StatusForbidden && refused.Code != http.StatusNotFound {
				t.Errorf("%s may get %s: %v", account, path, err)
			}
		}
	}
}

// testGatewayPods: a gateway labels its own pods. It changes nothing else of them, above all not
// their images, and nothing of other pods.
func testGatewayPods(t *testing.T, p *peeringLab) {
	pod := func(name string, labels object) object {
		return object{"apiVersion": "v1", "kind": "Pod", "metadata": object{"name": name, "namespace": "culvert",
			"labels": labels, "annotations": object{"a": "b"}}, "spec": object{"serviceAccountName": name,
			"securityContext": object{"runAsNonRoot": true, "runAsUser": 65532, "seccompProfile": object{"type": "RuntimeDefault"}},
			"containers": []object{{"name": "culvert", "image": "good", "securityContext": object{
				"allowPrivilegeEscalation": false, "capabilities": object{"drop": []string{"ALL"}}}}}}}
	}
	of := func(peering string) object {
		return object{"app": "culvert-gateway", "culvert.io/peering": peering, "culvert.io/active": "false"}
	}
	p.apply(pod("own", of("milan")), pod("turin", of("turin")), pod("controller", object{"app": "culvert-multicluster"}),
		pod("bare", nil))
	token, err := p.api.token("culvert", "culvert-milan")
	need.NoError(t, err)
	client := newKubeClient(p.api.host, p.api.base, p.api.roots, token)
	patch := func(name string, change object) error {
		return client.request(http.MethodPatch, kubePath("v1", "Pod", "culvert", name), "application/merge-patch+json",
			change, nil)
	}
	confined := object{"allowPrivilegeEscalation": false, "capabilities": object{"drop": []string{"ALL"}}}
	image := object{"spec": object{"containers": []object{{"name": "culvert", "image": "evil",
		"securityContext": confined}}}}
	label := func(name string, value any) object {
		return object{"metadata": object{"labels": object{name: value}}}
	}
	eventually(t, "the policy is in force", func() error {
		if patch("controller", label("x", "y")) == nil {
			return errNotYet
		}
		return nil
	})
	for _, c := range []struct {
		what, pod string
		change    object
		may       bool
	}{
		{"the label", "own", label("culvert.io/active", "true"), true},
		{"no label", "own", label("culvert.io/active", nil), true},
		{"the label again", "own", label("culvert.io/active", "true"), true},
		{"its image", "own", image, false},
		{"the image of the controller", "controller", image, false},
		{"the image of another gateway", "turin", image, false},
		{"the image of a pod without labels", "bare", image, false},
		{"the label of another gateway", "turin", label("culvert.io/active", "true"), false},
		{"the label of the controller", "controller", label("culvert.io/active", "true"), false},
		{"another label", "own", label("app", "evil"), false},
		{"whose it is", "own", label("culvert.io/peering", "turin"), false},
		{"to make another's its own", "turin", label("culvert.io/peering", "milan"), false},
		{"a new label", "own", label("x", "y"), false},
		{"an annotation", "own", object{"metadata": object{"annotations": object{"a": "c"}}}, false},
		{"a finalizer", "own", object{"metadata": object{"finalizers": []string{"example.org/x"}}}, false},
		{"an owner", "own", object{"metadata": object{"ownerReferences": []object{{"apiVersion": "v1", "kind": "Pod",
			"name": "turin", "uid": "u"}}}}, false},
		{"its deadline", "own", object{"spec": object{"activeDeadlineSeconds": 1}}, false},
	} {
		err := patch(c.pod, c.change)
		if refused := new(kubeError); (err == nil) != c.may ||
			err != nil && (!errors.As(err, &refused) || !strings.Contains(refused.Message, "a gateway may change")) {
			t.Errorf("%s: %v, allowed must be %t", c.what, err, c.may)
		}
	}
	if err := p.api.admin.request(http.MethodPatch, kubePath("v1", "Pod", "culvert", "turin"),
		"application/merge-patch+json", image, nil); err != nil {
		t.Errorf("the administrator: %v", err)
	}
}
