package deploy

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/netip"
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
	"sigs.k8s.io/yaml"

	"culvert/kube"
	"culvert/kube/objects"
)

// manager is the field manager of applied objects.
const manager = "culvert"

// minMinor is the oldest Kubernetes 1.x whose API servers accept the kinds, and include the node in
// an agent's token.
const minMinor = 31

// A Cluster is a client of a cluster's API server, with a user's rights.
type Cluster struct {
	client dynamic.Interface
	http   *http.Client
	host   string
	owner  string // who has installed what leaving has left
	kept   string // why leaving has left what Install has made

	mu   sync.Mutex
	done map[string]func() (*unstructured.Unstructured, error) // +checklocks:mu
}

// Owner returns who has installed what Leave or LeaveAll has not removed; "" if nothing is left.
func (c *Cluster) Owner() string { return c.owner }

// Kept returns what LeaveAll has left of what Install has made, and why; "" if nothing is left.
func (c *Cluster) Kept() string { return c.kept }

// New returns a Cluster. It sends no request yet.
func New(c *rest.Config) (*Cluster, error) {
	client, err := dynamic.NewForConfig(c)
	if err != nil {
		return nil, err
	}
	h, err := rest.HTTPClientFor(c)
	if err != nil {
		return nil, err
	}
	host := c.Host
	if !strings.Contains(host, "://") {
		host = "https://" + host
	}
	return &Cluster{client: client, http: h, host: strings.TrimSuffix(host, "/")}, nil
}

// API returns the IP address of the API server; invalid if the server is known by a name.
func (c *Cluster) API() netip.Addr {
	u, err := url.Parse(c.host)
	if err != nil {
		return netip.Addr{}
	}
	a, _ := netip.ParseAddr(u.Hostname())
	return a
}

// Check returns the version of the API server, or an error if that is too old or the user lacks one
// of some rights.
func (c *Cluster) Check(ctx context.Context, rights []Right) (version string, err error) {
	if version, err = c.version(ctx); err == nil {
		err = c.allowed(ctx, rights)
	}
	return version, err
}

// version returns the version of the API server, or an error if that is too old.
func (c *Cluster) version(ctx context.Context) (string, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, c.host+"/version", nil)
	if err != nil {
		return "", err
	}
	response, err := c.http.Do(request)
	if err != nil {
		return "", fmt.Errorf("cannot be reached: %w", err)
	}
	defer response.Body.Close()
	text, err := io.ReadAll(io.LimitReader(response.Body, 1<<16))
	if err != nil {
		return "", fmt.Errorf("cannot be reached: %w", err)
	}
	var v struct{ Major, Minor, GitVersion string }
	if response.StatusCode != http.StatusOK || json.Unmarshal(text, &v) != nil {
		return "", fmt.Errorf("/version: the API server answers %s", response.Status)
	}
	minor, err := strconv.Atoi(strings.TrimRight(v.Minor, "+"))
	if v.Major == "1" && err == nil && minor < minMinor {
		return "",
			fmt.Errorf("version %s of Kubernetes is too old: its API server does not say from which node an agent is; want 1.%d or newer", v.GitVersion, minMinor)
	}
	return strings.TrimPrefix(v.GitVersion, "v"), nil
}

// ID returns an identifier that no other cluster has.
func (c *Cluster) ID(ctx context.Context) (string, error) {
	u, err := c.client.Resource(objects.Namespaces).Get(ctx, "kube-system", metav1.GetOptions{})
	if err != nil {
		return "", fmt.Errorf("get namespace kube-system: %w", err)
	}
	return string(u.GetUID()), nil
}

// Objects parses manifests.
func Objects(text string) (all []*unstructured.Unstructured, err error) {
	for document := range strings.SplitSeq(text, "\n---\n") {
		u := &unstructured.Unstructured{}
		raw, err := yaml.YAMLToJSON([]byte(document))
		if err == nil {
			err = u.UnmarshalJSON(raw)
		}
		if err != nil {
			return nil, err
		}
		all = append(all, u)
	}
	return all, nil
}

// resourceOf returns the API resource of an object.
func resourceOf(u *unstructured.Unstructured) schema.GroupVersionResource {
	return objects.Resource(u.GetAPIVersion(), u.GetKind())
}

func (c *Cluster) of(u *unstructured.Unstructured) dynamic.ResourceInterface {
	return c.client.Resource(resourceOf(u)).Namespace(u.GetNamespace())
}

// nameOf names an object in a message.
func nameOf(u *unstructured.Unstructured) string {
	name := u.GetName()
	if u.GetNamespace() != "" {
		name = u.GetNamespace() + "/" + name
	}
	return u.GetKind() + " " + name
}

// each calls a function for all objects of a resource; for none if the cluster lacks the resource.
func (c *Cluster) each(ctx context.Context, r schema.GroupVersionResource, namespace, labels string,
	visit func(*unstructured.Unstructured)) error {
	err := kube.Each(ctx, c.client.Resource(r).Namespace(namespace), metav1.ListOptions{LabelSelector: labels},
		func(u *unstructured.Unstructured) error {
			visit(u)
			return nil
		})
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("list %s: %w", r.Resource, err)
	}
	return nil
}

// A Right is a permission that a user needs.
type Right struct{ Verb, Group, Resource, Namespace string }

func (r Right) String() string {
	text := r.Verb + " " + r.Resource
	if r.Group != "" {
		text += "." + r.Group
	}
	if r.Namespace != "" {
		text += " in " + r.Namespace
	}
	return text
}

// rightsFor returns the rights for verbs on the resources of some objects.
func rightsFor(all []*unstructured.Unstructured, verbs ...string) (rights []Right) {
	seen := map[Right]bool{}
	for _, u := range all {
		r := resourceOf(u)
		for _, verb := range verbs {
			if right := (Right{verb, r.Group, r.Resource, u.GetNamespace()}); !seen[right] {
				seen[right] = true
				rights = append(rights, right)
			}
		}
	}
	return rights
}

// allowed asks the API server whether the user has all of some rights. The error names the missing
// ones.
func (c *Cluster) allowed(ctx context.Context, rights []Right) error {
	var missing []string
	for _, r := range rights {
		review := &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview",
			"spec": map[string]any{"resourceAttributes": map[string]any{"verb": r.Verb, "group": r.Group,
				"resource": r.Resource, "namespace": r.Namespace}},
		}}
		answer, err := c.client.Resource(objects.Reviews).Create(ctx, review, metav1.CreateOptions{})
		if err != nil {
			return fmt.Errorf("ask for your rights: %w", err)
		}
		if ok, _, _ := unstructured.NestedBool(answer.Object, "status", "allowed"); !ok {
			missing = append(missing, r.String())
		}
	}
	if len(missing) == 0 {
		return nil
	}
	const most = 5
	text := strings.Join(missing[:min(len(missing), most)], ", ")
	if n := len(missing) - most; n > 0 {
		text += fmt.Sprintf(" and %d more", n)
	}
	return errors.New("you are not allowed to " + text +
		"; ask an administrator of the cluster, or apply what culvert kube template prints")
}
