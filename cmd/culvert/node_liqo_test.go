//go:build !nokube

package main

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/sirupsen/logrus/hooks/test"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic/fake"
	"k8s.io/client-go/rest"
	clienttesting "k8s.io/client-go/testing"

	"culvert/integration/need"
)

// TestUnwanted: an agent removes its links only if its DaemonSet or namespace goes, or if a ready
// API server refuses it for long.
func TestUnwanted(t *testing.T) {
	there := func() (runtime.Object, error) { return &unstructured.Unstructured{Object: map[string]any{}}, nil }
	going := func() (runtime.Object, error) {
		o := &unstructured.Unstructured{Object: map[string]any{}}
		o.SetDeletionTimestamp(&metav1.Time{Time: time.Now()})
		return o, nil
	}
	fails := func(err error) func() (runtime.Object, error) {
		return func() (runtime.Object, error) { return nil, err }
	}
	gone := fails(apierrors.NewNotFound(schema.GroupResource{}, "x"))
	forbidden := fails(apierrors.NewForbidden(schema.GroupResource{}, "x", fmt.Errorf("no role")))
	unknown := fails(apierrors.NewUnauthorized("no such account"))
	away := fails(fmt.Errorf("connection refused"))
	during := func(d time.Duration, first, then func() (runtime.Object, error)) func() (runtime.Object, error) {
		end := time.Now().Add(d) // of the bubble
		return func() (runtime.Object, error) {
			if time.Now().Before(end) {
				return first()
			}
			return then()
		}
	}
	type answer = func() (runtime.Object, error)
	for _, c := range []struct {
		name                 string
		daemonSet, namespace func() answer
		ready                bool
		want                 bool
		least, most          time.Duration
	}{
		{"a rollout", one(there), one(there), true, false, 0, 0},
		{"a deleted DaemonSet", one(gone), one(there), true, true, 0, 0},
		{"a DaemonSet that is being deleted", one(going), one(there), true, true, 0, 0},
		{"a namespace that is being deleted", one(there), one(going), true, true, 0, 0},
		{"its role goes first", func() answer { return during(100*time.Millisecond, there, forbidden) },
			one(forbidden), true, true,
			refusedTime, refusedTime + time.Second},
		{"its account goes first", one(unknown), one(unknown), true, true, refusedTime, refusedTime + time.Second},
		{"an older role", one(there), one(forbidden), true, false, 0, time.Second},
		{"an API server that starts", one(forbidden), one(forbidden), false, false, 0, 0},
		{"one that reads roles for 15 s", func() answer { return during(15*time.Second, forbidden, there) },
			one(there), true, false,
			15 * time.Second, 16 * time.Second},
		{"no answer", one(away), one(away), true, false, 0, 0},
		{"no answer after refusals", func() answer { return during(19*time.Second, unknown, away) }, one(away), true,
			false, 19 * time.Second,
			20 * time.Second},
	} {
		t.Run(c.name, func(t *testing.T) {
			need.Bubble(t, func(t *testing.T) {
				client := fake.NewSimpleDynamicClient(runtime.NewScheme())
				for of, answers := range map[string]answer{"daemonsets": c.daemonSet(), "namespaces": c.namespace()} {
					client.PrependReactor("get", of, func(clienttesting.Action) (bool, runtime.Object, error) {
						o, err := answers()
						return true, o, err
					})
				}
				log, _ := test.NewNullLogger()
				began := time.Now()
				l := &nodeLiqo{daemonSet: "culvert-nodes/culvert-node"}
				got := l.unwanted(t.Context(), client, func(context.Context) bool { return c.ready }, log)
				if took := time.Since(began); got != c.want || took < c.least || took > c.most {
					t.Errorf("unwanted: %t after %v, want %t after %v to %v", got, took, c.want, c.least, c.most)
				}
			})
		})
	}
}

func one(f func() (runtime.Object, error)) func() func() (runtime.Object, error) {
	return func() func() (runtime.Object, error) { return f }
}

// TestReadiness: only an API server that does not call itself ready, or does not answer, is not
// ready.
func TestReadiness(t *testing.T) {
	for status, want := range map[int]bool{200: true, 401: true, 403: true, 500: false, 503: false} {
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path != "/readyz" || strings.Contains(fmt.Sprint(r.Header), "secret") {
				t.Errorf("asked %s with %v", r.URL, r.Header)
			}
			w.WriteHeader(status)
		}))
		if got := readiness(&rest.Config{Host: server.URL, BearerToken: "secret"})(t.Context()); got != want {
			t.Errorf("status %d: ready %t", status, got)
		}
		server.Close()
		if readiness(&rest.Config{Host: server.URL})(t.Context()) {
			t.Error("what does not answer is ready")
		}
	}
}
