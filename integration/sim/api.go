package sim

import (
	"context"
	"encoding/json"
	"errors"
	"strconv"
	"strings"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
)

// apiServer is the part of an API server that an election needs: one Lease, and the pods of a
// gateway with their labels.
type apiServer struct {
	labelled func(pod string) // is called when another pod alone has the label

	mu      sync.Mutex
	sole    string                                // the last pod that had the label alone; +checklocks:mu
	objects map[string]*unstructured.Unstructured // by kind and name; +checklocks:mu
	version int                                   // +checklocks:mu
	away    bool                                  // it refuses everybody; +checklocks:mu
	ways    map[string]*apiWay                    // of each pod; +checklocks:mu
}

// apiWay is how requests of a pod fail.
type apiWay struct {
	lost, unanswered bool // requests, answers
	delay            time.Duration
}

const (
	apiLatency = time.Millisecond
	labelName  = "active"
	leaseName  = "gateway"
)

func newAPIServer(labelled func(pod string)) *apiServer {
	return &apiServer{labelled: labelled, objects: make(map[string]*unstructured.Unstructured),
		ways: make(map[string]*apiWay)}
}

// add adds a pod with an address.
func (a *apiServer) add(name, address string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.objects["pods/"+name] = &unstructured.Unstructured{Object: map[string]any{
		"metadata": map[string]any{"name": name, "labels": map[string]any{}},
		"status":   map[string]any{"podIP": address},
	}}
	a.ways[name] = new(apiWay)
}

// set changes how requests of a pod fail.
func (a *apiServer) set(pod string, change func(*apiWay)) {
	a.mu.Lock()
	defer a.mu.Unlock()
	change(a.ways[pod])
}

// fails reports whether something is wrong with requests of a pod.
func (a *apiServer) fails(pod string) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.away || *a.ways[pod] != apiWay{}
}

// refuse has the server refuse everybody, or no more.
func (a *apiServer) refuse(away bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.away = away
}

// forget deletes the Lease.
func (a *apiServer) forget() {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.objects, "leases/"+leaseName)
}

// labels returns the pods with the label.
func (a *apiServer) labels() []string {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.haveLabel()
}

// +checklocks:a.mu
func (a *apiServer) haveLabel() (all []string) {
	for key, o := range a.objects {
		if o.GetLabels()[labelName] != "" {
			all = append(all, strings.TrimPrefix(key, "pods/"))
		}
	}
	return all
}

// apiClient is a pod's way to its API server.
type apiClient struct {
	dynamic.NamespaceableResourceInterface // what an election does not need
	server                                 *apiServer
	vote                                   *vote
	kind                                   string
}

// Resource implements dynamic.Interface.
func (c *apiClient) Resource(of schema.GroupVersionResource) dynamic.NamespaceableResourceInterface {
	return &apiClient{server: c.server, vote: c.vote, kind: of.Resource}
}

// Namespace implements dynamic.NamespaceableResourceInterface.
func (c *apiClient) Namespace(string) dynamic.ResourceInterface { return c }

var errRefused = errors.New("connection refused")

// ask has the server do something for a pod, which may be killed before and after that.
func (c *apiClient) ask(ctx context.Context, do func(a *apiServer) error) error {
	if err := c.travel(ctx, func(w *apiWay) bool { return w.lost }); err != nil {
		return err
	}
	if c.vote.step() {
		<-ctx.Done()
		return ctx.Err()
	}
	c.server.mu.Lock()
	err := do(c.server)
	c.server.mu.Unlock()
	c.vote.step()
	if lost := c.travel(ctx, func(w *apiWay) bool { return w.unanswered }); lost != nil {
		return lost
	}
	return err
}

// travel waits until a message is at the other end. One that is lost is waited for until ctx ends.
func (c *apiClient) travel(ctx context.Context, lost func(*apiWay) bool) error {
	c.server.mu.Lock()
	way := c.server.ways[c.vote.pod.name]
	delay := way.delay
	c.server.mu.Unlock()
	timer := time.NewTimer(apiLatency + delay)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
		return ctx.Err()
	}
	c.server.mu.Lock()
	gone, away := lost(way), c.server.away
	c.server.mu.Unlock()
	switch {
	case gone, c.vote.dead.Load():
		<-ctx.Done()
		return ctx.Err()
	case away:
		return errRefused
	}
	return nil
}

// Get implements dynamic.ResourceInterface.
func (c *apiClient) Get(ctx context.Context, name string, _ metav1.GetOptions,
	_ ...string) (u *unstructured.Unstructured, err error) {
	err = c.ask(ctx, func(a *apiServer) error {
		o := a.objects[c.kind+"/"+name]
		if o == nil {
			return apierrors.NewNotFound(schema.GroupResource{Resource: c.kind}, name)
		}
		u = o.DeepCopy()
		return nil
	})
	return u, err
}

// List implements dynamic.ResourceInterface. It heeds the last part of the selector: whether pods
// have a label.
func (c *apiClient) List(ctx context.Context, o metav1.ListOptions) (list *unstructured.UnstructuredList, err error) {
	list = new(unstructured.UnstructuredList)
	return list, c.ask(ctx, func(a *apiServer) error {
		for key, x := range a.objects {
			if strings.HasPrefix(key, c.kind+"/") && (!strings.HasSuffix(o.LabelSelector, ","+labelName) ||
				x.GetLabels()[labelName] != "") {
				list.Items = append(list.Items, *x.DeepCopy())
			}
		}
		return nil
	})
}

// Create implements dynamic.ResourceInterface.
func (c *apiClient) Create(ctx context.Context, u *unstructured.Unstructured, _ metav1.CreateOptions,
	_ ...string) (*unstructured.Unstructured, error) {
	return u, c.ask(ctx, func(a *apiServer) error {
		if a.objects[c.kind+"/"+u.GetName()] != nil {
			return apierrors.NewAlreadyExists(schema.GroupResource{Resource: c.kind}, u.GetName())
		}
		a.put(c.kind, u)
		c.wrote(nil)
		return nil
	})
}

// Update implements dynamic.ResourceInterface.
func (c *apiClient) Update(ctx context.Context, u *unstructured.Unstructured, _ metav1.UpdateOptions,
	_ ...string) (*unstructured.Unstructured, error) {
	return u, c.ask(ctx, func(a *apiServer) error {
		switch o := a.objects[c.kind+"/"+u.GetName()]; {
		case o == nil:
			return apierrors.NewNotFound(schema.GroupResource{Resource: c.kind}, u.GetName())
		case o.GetResourceVersion() != u.GetResourceVersion():
			return apierrors.NewConflict(schema.GroupResource{Resource: c.kind}, u.GetName(),
				errors.New("it has changed"))
		}
		c.wrote(a.objects[c.kind+"/"+u.GetName()])
		a.put(c.kind, u)
		return nil
	})
}

// wrote notes when the pod has last written the Lease, in the place of one. A gateway that has only
// started has no right to renew the one that the gateway before it in this pod had.
func (c *apiClient) wrote(before *unstructured.Unstructured) {
	holder := ""
	if before != nil {
		holder, _, _ = unstructured.NestedString(before.Object, "spec", "holderIdentity")
	}
	if v := c.vote; c.kind == "leases" && (holder != v.pod.name || v.driven.Load()) {
		v.renewed.Store(int64(v.pod.w.now()))
	}
}

// put stores an object as its next version.
//
// +checklocks:a.mu
func (a *apiServer) put(kind string, u *unstructured.Unstructured) {
	a.version++
	u = u.DeepCopy()
	u.SetResourceVersion(strconv.Itoa(a.version))
	a.objects[kind+"/"+u.GetName()] = u
}

// Patch implements dynamic.ResourceInterface, for the label of pods.
func (c *apiClient) Patch(ctx context.Context, name string, _ types.PatchType, data []byte, _ metav1.PatchOptions,
	_ ...string) (*unstructured.Unstructured, error) {
	var patch struct {
		Metadata struct{ Labels map[string]*string }
	}
	if err := json.Unmarshal(data, &patch); err != nil {
		return nil, err
	}
	return nil, c.ask(ctx, func(a *apiServer) error {
		o := a.objects[c.kind+"/"+name]
		if o == nil {
			return apierrors.NewNotFound(schema.GroupResource{Resource: c.kind}, name)
		}
		labels := o.GetLabels()
		if labels == nil {
			labels = make(map[string]string)
		}
		delete(labels, labelName)
		if value := patch.Metadata.Labels[labelName]; value != nil {
			labels[labelName] = *value
		}
		o.SetLabels(labels)
		if all := a.haveLabel(); len(all) == 1 && all[0] != a.sole {
			a.sole = all[0]
			a.labelled(a.sole)
		}
		return nil
	})
}
