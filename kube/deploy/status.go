package deploy

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"culvert/kube/objects"
	"culvert/kube/peering"
)

// Status returns the status of a Peering. Conditions of an earlier spec are left out, because they
// say nothing about this one.
func (c *Cluster) Status(ctx context.Context, name string) (*peering.Status, error) {
	u, err := c.client.Resource(objects.Peerings).Namespace(peering.GatewayNamespace).Get(ctx, name,
		metav1.GetOptions{})
	if err != nil {
		return nil, fmt.Errorf("get Peering %s: %w", name, err)
	}
	p := peering.PeeringOf(u)
	for _, c := range p.Status.Conditions {
		if c.Observed != p.Generation && (c.Type == peering.Accepted || c.Type == peering.NodesReady ||
			c.Type == peering.Connected) {
			p.Status.Conditions, p.Status.Message = nil, "the gateway has not read the Peering as it is now"
			break
		}
	}
	return &p.Status, nil
}

// Endpoint returns the address of a Peering's gateway: that of its Service's load balancer, or a
// node's address and the node port. Until there is one, missing says what it waits for.
func (c *Cluster) Endpoint(ctx context.Context, name string, node netip.Addr) (endpoint, missing string, err error) {
	u, err := c.client.Resource(objects.Services).Namespace(peering.GatewayNamespace).Get(ctx, "culvert-"+name,
		metav1.GetOptions{})
	if err != nil {
		return "", "", fmt.Errorf("get Service culvert-%s: %w", name, err)
	}
	s, fault := objects.ReadService(objects.Of("Service", u))
	if fault != "" {
		return "", "", fmt.Errorf("read Service culvert-%s: %s", name, fault)
	}
	if len(s.Spec.Ports) == 0 {
		return "", "a port of Service culvert-" + name, nil
	}
	port := s.Spec.Ports[0]
	switch {
	case s.Spec.Type == "LoadBalancer" && len(s.Status.LoadBalancer.Ingress) > 0:
		in := s.Status.LoadBalancer.Ingress[0]
		return net.JoinHostPort(cmp.Or(in.IP, in.Hostname), fmt.Sprint(port.Port)), "", nil
	case s.Spec.Type == "LoadBalancer":
		return "", fmt.Sprintf("a load balancer's address for Service culvert-%s; or give --expose NodePort", name), nil
	case s.Spec.Type == "NodePort" && port.NodePort != 0 && node.IsValid():
		return net.JoinHostPort(node.String(), fmt.Sprint(port.NodePort)), "", nil
	case s.Spec.Type == "NodePort":
		return "", "a node port of Service culvert-" + name + ", or a Node with an address", nil
	}
	return "", fmt.Sprintf("an address: Service culvert-%s is a %s; give --endpoint", name, s.Spec.Type), nil
}

// Key returns the public key of a Peering's gateway once that of its Secret is the one in use, by a
// pod that stays; otherwise missing says why not.
func (c *Cluster) Key(ctx context.Context, name string) (key, missing string, err error) {
	status, err := c.Status(ctx, name)
	if err != nil {
		return "", "", err
	}
	if status.PublicKey == "" || status.Active == nil {
		return "", "the gateway's key" + colon(cmp.Or(status.Message, "the gateway is starting")), nil
	}
	pod, err := c.client.Resource(objects.Pods).Namespace(peering.GatewayNamespace).Get(ctx, status.Active.Pod,
		metav1.GetOptions{})
	if apierrors.IsNotFound(err) || err == nil && pod.GetDeletionTimestamp() != nil {
		return "", fmt.Sprintf("another gateway in the place of pod %s, which ends", status.Active.Pod), nil
	}
	if err != nil {
		return "", "", fmt.Errorf("get pod %s: %w", status.Active.Pod, err)
	}
	annotations, err := c.annotations(ctx, "/api/v1/namespaces/"+peering.GatewayNamespace+"/secrets/culvert-"+name)
	if err != nil {
		return "", "", fmt.Errorf("get the annotations of Secret culvert-%s: %w", name, err)
	}
	if has := annotations[peering.KeyAnnotation]; has != "" && has != status.PublicKey {
		return "",
			fmt.Sprintf("a gateway with the key of Secret culvert-%s, whose public one is %s; the active one began with another: kubectl -n %s rollout restart deployment culvert-%[1]s",
				name, has, peering.GatewayNamespace), nil
	}
	return status.PublicKey, "", nil
}

// annotations returns those of an object, without reading the rest of it: a private key stays in
// its cluster.
func (c *Cluster) annotations(ctx context.Context, path string) (map[string]string, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, c.host+path, nil)
	if err != nil {
		return nil, err
	}
	request.Header.Set("Accept", "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1")
	response, err := c.http.Do(request)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("the API server answers %s", response.Status)
	}
	var o struct {
		Metadata struct{ Annotations map[string]string }
	}
	return o.Metadata.Annotations, json.NewDecoder(io.LimitReader(response.Body, 1<<20)).Decode(&o)
}
