package kube

import (
	"context"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/dynamic"
)

// perPage is the number of objects that one request lists.
const perPage = 500

// Each lists objects page by page and calls visit for each of them, until a request or visit fails.
func Each(ctx context.Context, client dynamic.ResourceInterface, o metav1.ListOptions,
	visit func(*unstructured.Unstructured) error) error {
	for o.Limit = perPage; ; {
		l, err := client.List(ctx, o)
		if err != nil {
			return err
		}
		for i := range l.Items {
			if err := visit(&l.Items[i]); err != nil {
				return err
			}
		}
		if o.Continue = l.GetContinue(); o.Continue == "" {
			return nil
		}
	}
}
