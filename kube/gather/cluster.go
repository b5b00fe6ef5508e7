package gather

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"

	"culvert/gateway/gather"
	"culvert/kube"
	"culvert/kube/objects"
	"culvert/kube/peering"
)

// A Cluster is a client of a cluster's API server, with a user's rights.
type Cluster struct {
	context string
	client  dynamic.Interface
	http    *http.Client
	host    string
}

// New returns a Cluster for a context. It sends no request yet.
func New(name string, c *rest.Config) (*Cluster, error) {
	client, err := dynamic.NewForConfig(c)
	if err != nil {
		return nil, err
	}
	one := rest.CopyConfig(c)
	one.NextProtos = []string{"http/1.1"} // another version cannot become a WebSocket
	h, err := rest.HTTPClientFor(one)
	if err != nil {
		return nil, err
	}
	host, _, err := rest.DefaultServerUrlFor(one)
	if err != nil {
		return nil, err
	}
	return &Cluster{name, client, h, strings.TrimSuffix(host.String(), "/")}, nil
}

// A wanted is a list of objects to collect.
type wanted struct {
	file      string
	resource  schema.GroupVersionResource
	namespace string // "": all, or the resource has none
	labels    string
}

// agents selects the pods of culvert node.
const agents = "app=culvert-node"

// servesNamespace has the agents that serve Services in place of kube-proxy.
const servesNamespace = "kube-system"

var lists = []wanted{
	{"peerings", objects.Peerings, peering.GatewayNamespace, ""},
	{"tunnelnodes", objects.TunnelNodes, peering.NodeNamespace, ""},
	{"nodes", objects.Nodes, "", ""},
	{"deployments", objects.Deployments, peering.GatewayNamespace, ""},
	{"daemonsets", objects.DaemonSets, peering.NodeNamespace, ""},
	{gateways, objects.Pods, peering.GatewayNamespace, ""},
	{nodeAgents, objects.Pods, peering.NodeNamespace, ""},
	{serviceAgents, objects.Pods, servesNamespace, agents},
	{"services", objects.Services, peering.GatewayNamespace, ""},
	{"leases", objects.Leases, peering.GatewayNamespace, ""},
	{"networkpolicies", objects.NetworkPolicies, peering.GatewayNamespace, ""},
	{"events", objects.Events, peering.GatewayNamespace, ""},
	{"events-nodes", objects.Events, peering.NodeNamespace, ""},
	{"exported-services", objects.Services, "", peering.LabelExport + "=true"},
	{"imported-services", objects.Services, "", peering.LabelImported},
	{"imported-endpointslices", objects.EndpointSlices, "", peering.LabelImported},
}

// The lists of pods.
const (
	gateways      = "gateways"
	nodeAgents    = "agents"
	serviceAgents = "service-agents"
)

// multiclusterApp labels the pods of culvert multicluster, which are beside gateways.
const multiclusterApp = "culvert-multicluster"

// atOnce is how many requests a cluster gets at one time.
const atOnce = 8

// Collect adds what the cluster says. Nothing fails as a whole: the archive says what is missing.
func (c *Cluster) Collect(ctx context.Context, a *gather.Archive) {
	version, err := c.get(ctx, "/version", nil)
	if err != nil {
		a.Miss("all of it", fmt.Errorf("the API server does not answer: %w", err), c.context)
		return
	}
	a.Add("version.json", version, c.context)
	pods := map[string][]*unstructured.Unstructured{}
	results := make([]gather.Archive, len(lists))
	found := make([][]*unstructured.Unstructured, len(lists))
	side(len(lists), func(i int) { found[i] = c.list(ctx, &results[i], &lists[i]) })
	for i := range lists {
		join(a, &results[i])
		pods[lists[i].file] = found[i]
	}
	asks := []func(*gather.Archive){}
	for _, kind := range []string{gateways, nodeAgents, serviceAgents} {
		for _, u := range pods[kind] {
			asks = append(asks, func(a *gather.Archive) { c.pod(ctx, a, u, kind == gateways) })
		}
	}
	results = make([]gather.Archive, len(asks))
	side(len(asks), func(i int) { asks[i](&results[i]) })
	for i := range results {
		join(a, &results[i])
	}
}

func join(a, of *gather.Archive) {
	a.Entries = append(a.Entries, of.Entries...)
	a.Missing = append(a.Missing, of.Missing...)
}

// side calls do for 0 to n-1, some side by side.
func side(n int, do func(int)) {
	var tasks sync.WaitGroup
	seats := make(chan struct{}, atOnce)
	for i := range n {
		seats <- struct{}{}
		tasks.Go(func() {
			defer func() { <-seats }()
			do(i)
		})
	}
	tasks.Wait()
}

// list adds a list of objects, and returns them.
func (c *Cluster) list(ctx context.Context, a *gather.Archive, w *wanted) (all []*unstructured.Unstructured) {
	items := []map[string]any{}
	err := kube.Each(ctx, c.client.Resource(w.resource).Namespace(w.namespace),
		metav1.ListOptions{LabelSelector: w.labels}, func(u *unstructured.Unstructured) error {
			all = append(all, u)
			items = append(items, trim(u.Object))
			return nil
		})
	of := w.resource.Resource
	if w.namespace != "" {
		of += " in namespace " + w.namespace
	}
	switch {
	case apierrors.IsForbidden(err):
		err = fmt.Errorf("you may not list %s: have an administrator of the cluster allow it, or gather", of)
	case apierrors.IsNotFound(err):
		err = fmt.Errorf("the cluster has no resource %s: is culvert installed there?", w.resource.Resource)
	}
	if err != nil {
		a.Miss(w.file, err, c.context)
		return nil // half a list would look whole
	}
	a.AddJSON("objects/"+w.file+".json", items, c.context)
	return all
}

// Bounds of what is collected of a log: its last lines.
const (
	logLines   = 5000
	agentShare = 8 // an agent's is shorter by this factor: there may be thousands
)

// maxAnswer is the maximum size of an answer, in bytes.
const maxAnswer = 32 << 20

// pod adds the logs of a pod, and what its gateway or agent answers.
func (c *Cluster) pod(ctx context.Context, a *gather.Archive, u *unstructured.Unstructured, gateway bool) {
	place := []string{c.context, u.GetNamespace(), u.GetName()}
	container, restarts, running := containerOf(u)
	if container == "" {
		return
	}
	share := agentShare
	if gateway {
		share = 1
	}
	path := "/api/v1/namespaces/" + url.PathEscape(u.GetNamespace()) + "/pods/" + url.PathEscape(u.GetName())
	for _, previous := range []bool{false, true} {
		file := "culvert.log"
		if previous && restarts == 0 {
			continue
		}
		if previous {
			file = "previous.log"
		}
		text, err := c.get(ctx, path+"/log", url.Values{"container": {container},
			"tailLines": {strconv.Itoa(logLines / share)}, "previous": {strconv.FormatBool(previous)}})
		if err != nil {
			a.Miss(file, denied(err, "get pods/log in namespace "+u.GetNamespace()), place...)
			continue
		}
		a.Add(file, text, place...)
	}
	if !running {
		a.Miss("status", errors.New("its container does not run"), place...)
		return
	}
	if u.GetLabels()["app"] == multiclusterApp { // it answers no questions
		return
	}
	x := &pod{cluster: c, path: path, container: container, namespace: u.GetNamespace()}
	if gateway {
		a.AskGateway(ctx, x, place...)
	} else {
		a.AskNode(ctx, x, place...)
	}
}

// containerOf returns the name of culvert's container, how often it was restarted, and whether it
// runs.
func containerOf(u *unstructured.Unstructured) (name string, restarts int64, running bool) {
	var p struct {
		Spec   struct{ Containers []struct{ Name string } }
		Status struct {
			ContainerStatuses []struct {
				Name         string
				RestartCount int64
				State        struct{ Running *struct{} }
			}
		}
	}
	text, err := json.Marshal(u.Object)
	if err != nil || json.Unmarshal(text, &p) != nil {
		return "", 0, false
	}
	for _, c := range p.Spec.Containers {
		if name == "" || c.Name == "culvert" { // others may have been added by the cluster
			name = c.Name
		}
	}
	for _, s := range p.Status.ContainerStatuses {
		if s.Name == name {
			restarts, running = s.RestartCount, s.State.Running != nil
		}
	}
	return name, restarts, running
}

// A refusal is an answer of the API server that is not 200.
type refusal struct {
	code    int
	message string
}

func (r *refusal) Error() string { return r.message }

// denied says which right is missing, if it is one.
func denied(err error, right string) error {
	if r := new(refusal); errors.As(err, &r) && r.code == http.StatusForbidden {
		return fmt.Errorf("you may not %s: have an administrator of the cluster allow it, or gather", right)
	}
	return err
}

// request sends a request whose answer is read by the caller, or is a refusal.
func (c *Cluster) request(ctx context.Context, path string, query url.Values, header http.Header,
	want int) (*http.Response, error) {
	if len(query) > 0 {
		path += "?" + query.Encode()
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, c.host+path, nil)
	if err != nil {
		return nil, err
	}
	for name, values := range header {
		request.Header[name] = values
	}
	response, err := c.http.Do(request)
	if err != nil || response.StatusCode == want {
		return response, err
	}
	defer response.Body.Close()
	text, _ := io.ReadAll(io.LimitReader(response.Body, 1<<20))
	var status metav1.Status
	if json.Unmarshal(text, &status) != nil || status.Message == "" {
		status.Message = "the API server answers " + response.Status
	}
	return nil, &refusal{response.StatusCode, status.Message}
}

// get returns the answer to a request.
func (c *Cluster) get(ctx context.Context, path string, query url.Values) ([]byte, error) {
	response, err := c.request(ctx, path, query, nil, http.StatusOK)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	text, err := io.ReadAll(io.LimitReader(response.Body, maxAnswer+1))
	if err == nil && len(text) > maxAnswer {
		err = fmt.Errorf("it has more than %d MiB", maxAnswer>>20)
	}
	return text, err
}
