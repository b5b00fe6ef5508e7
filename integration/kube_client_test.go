package integration

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"testing"
)

// An object is a Kubernetes resource as JSON.
type object = map[string]any

// A kubeClient speaks to one API server as one user. It uses the documented HTTP API directly, so
// that no client library hides what a test does.
type kubeClient struct {
	t     *testing.T
	base  string
	token string
	http  http.Client
}

// newKubeClient connects from inside a host. roots are PEM certificates.
func newKubeClient(h *peerHost, base string, roots []byte, token string) *kubeClient {
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(roots)
	return &kubeClient{t: h.t, base: base, token: token, http: http.Client{Transport: &http.Transport{
		TLSClientConfig: &tls.Config{RootCAs: pool}, DialContext: h.dialContext, MaxIdleConnsPerHost: kubeWriters,
	}}}
}

// kubeError is what the API server says when it refuses.
type kubeError struct {
	Code            int
	Reason, Message string
}

func (e *kubeError) Error() string { return fmt.Sprintf("%d %s: %s", e.Code, e.Reason, e.Message) }

// request sends body, if not nil, and decodes the answer into answer, if not nil.
func (k *kubeClient) request(method, path, contentType string, body, answer any) error {
	var text []byte
	if body != nil {
		var err error
		if text, err = json.Marshal(body); err != nil {
			return err
		}
	}
	request, err := http.NewRequestWithContext(k.t.Context(), method, k.base+path, bytes.NewReader(text))
	if err != nil {
		return err
	}
	request.Header.Set("Authorization", "Bearer "+k.token)
	request.Header.Set("Content-Type", contentType)
	response, err := k.http.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	text, err = io.ReadAll(response.Body)
	if err != nil {
		return err
	}
	if response.StatusCode >= http.StatusBadRequest {
		e := &kubeError{Code: response.StatusCode, Message: string(text)}
		json.Unmarshal(text, e) // a Status, if the server says more
		return fmt.Errorf("%s %s: %w", method, path, e)
	}
	if answer == nil {
		return nil
	}
	return json.Unmarshal(text, answer)
}

// kubePlurals maps kinds to their names in paths.
var kubePlurals = map[string]string{
	"Namespace": "namespaces", "ServiceAccount": "serviceaccounts", "Pod": "pods", "Event": "events",
	"ClusterRole": "clusterroles", "ClusterRoleBinding": "clusterrolebindings", "Role": "roles",
	"RoleBinding": "rolebindings",
	"Node":        "nodes", "Service": "services", "EndpointSlice": "endpointslices", "Lease": "leases",
	"ConfigMap": "configmaps", "DaemonSet": "daemonsets",
	"CustomResourceDefinition": "customresourcedefinitions",
	"PublicKey":                "publickeies", "Connection": "connections", "GeneveTunnel": "genevetunnels",
	"InternalFabric": "internalfabrics", "InternalNode": "internalnodes",
	"FirewallConfiguration": "firewallconfigurations", "RouteConfiguration": "routeconfigurations",
	"NetworkPolicy": "networkpolicies", "PodDisruptionBudget": "poddisruptionbudgets", "Deployment": "deployments",
	"GatewayServer": "gatewayservers", "GatewayClient": "gatewayclients",
	"Peering": "peerings", "TunnelNode": "tunnelnodes", "PeerExports": "peerexports", "Secret": "secrets",
	"ServiceExport": "serviceexports", "ServiceImport": "serviceimports",
	"PodMonitor": "podmonitors", "PrometheusRule": "prometheusrules",
	"ValidatingAdmissionPolicy":        "validatingadmissionpolicies",
	"ValidatingAdmissionPolicyBinding": "validatingadmissionpolicybindings",
	"WgGatewayServerTemplate":          "wggatewayservertemplates",
	"WgGatewayClientTemplate":          "wggatewayclienttemplates",
}

// kubePath returns the path of a resource.
func kubePath(apiVersion, kind, namespace, name string) string {
	path := "/apis/" + apiVersion
	if apiVersion == "v1" {
		path = "/api/v1"
	}
	if namespace != "" {
		path += "/namespaces/" + namespace
	}
	path += "/" + kubePlurals[kind]
	if name != "" {
		path += "/" + name
	}
	return path
}

func pathOf(o object) string {
	meta := o["metadata"].(object)
	namespace, _ := meta["namespace"].(string)
	return kubePath(o["apiVersion"].(string), o["kind"].(string), namespace, meta["name"].(string))
}

const standInManager = "?force=true&fieldManager=stand-in"

// apply creates a resource, or changes it to what o says.
func (k *kubeClient) apply(o object) error {
	err := k.request(http.MethodPatch, pathOf(o)+standInManager+"&fieldValidation=Strict",
		"application/apply-patch+yaml", o, nil)
	if _, ok := o["status"]; err != nil || !ok {
		return err
	}
	return k.request(http.MethodPatch, pathOf(o)+"/status"+standInManager, "application/apply-patch+yaml", o, nil)
}

// dryRun returns what apply would return, and changes nothing.
func (k *kubeClient) dryRun(o object) error {
	return k.request(http.MethodPatch, pathOf(o)+standInManager+"&fieldValidation=Strict&dryRun=All",
		"application/apply-patch+yaml", o, nil)
}

// delete removes a resource.
func (k *kubeClient) delete(o object) error {
	return k.request(http.MethodDelete, pathOf(o), "application/json", nil, nil)
}

// replaceStatus stores the status of a resource unless somebody has changed the resource since it
// was read.
func (k *kubeClient) replaceStatus(o object) error {
	return k.request(http.MethodPut, pathOf(o)+"/status", "application/json", o, nil)
}

func isConflict(err error) bool {
	refused := new(kubeError)
	return errors.As(err, &refused) && refused.Code == http.StatusConflict
}

// get reads a resource as it is stored.
func (k *kubeClient) get(o object) (stored object, err error) {
	return stored, k.request(http.MethodGet, pathOf(o), "application/json", nil, &stored)
}

// list reads all resources of a kind in a namespace; "" = in all.
func (k *kubeClient) list(apiVersion, kind, namespace string) ([]object, error) {
	var list struct{ Items []object }
	return list.Items, k.request(http.MethodGet, kubePath(apiVersion, kind, namespace, ""),
		"application/json", nil, &list)
}

// field returns the field of a resource at a path of names; nil if it does not exist.
func field(o object, names ...string) any {
	var value any = o
	for _, name := range names {
		inner, _ := value.(object)
		value = inner[name]
	}
	return value
}
