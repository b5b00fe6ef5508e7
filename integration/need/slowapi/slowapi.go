// Package slowapi makes a simulated API server answer writes slowly, for tests.
package slowapi

import (
	"context"
	"sync/atomic"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
)

// A Client sends requests to another one. Delay, in nanoseconds, passes before it creates or
// updates an object of a namespace.
type Client struct {
	dynamic.Interface
	Delay atomic.Int64
}

// Resource implements dynamic.Interface.
func (c *Client) Resource(r schema.GroupVersionResource) dynamic.NamespaceableResourceInterface {
	return resource{c.Interface.Resource(r), c}
}

type resource struct {
	dynamic.NamespaceableResourceInterface
	of *Client
}

func (r resource) Namespace(name string) dynamic.ResourceInterface {
	return objects{r.NamespaceableResourceInterface.Namespace(name), r.of}
}

type objects struct {
	dynamic.ResourceInterface
	of *Client
}

func (o objects) wait(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(time.Duration(o.of.Delay.Load())):
		return nil
	}
}

func (o objects) Create(ctx context.Context, u *unstructured.Unstructured, opts metav1.CreateOptions,
	sub ...string) (*unstructured.Unstructured, error) {
	if err := o.wait(ctx); err != nil {
		return nil, err
	}
	return o.ResourceInterface.Create(ctx, u, opts, sub...)
}

func (o objects) Update(ctx context.Context, u *unstructured.Unstructured, opts metav1.UpdateOptions,
	sub ...string) (*unstructured.Unstructured, error) {
	if err := o.wait(ctx); err != nil {
		return nil, err
	}
	return o.ResourceInterface.Update(ctx, u, opts, sub...)
}

func (o objects) UpdateStatus(ctx context.Context, u *unstructured.Unstructured, opts metav1.UpdateOptions) (
	*unstructured.Unstructured, error) {
	if err := o.wait(ctx); err != nil {
		return nil, err
	}
	return o.ResourceInterface.UpdateStatus(ctx, u, opts)
}
