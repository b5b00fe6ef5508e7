package kube

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"reflect"
	"slices"
	"sync"
	"testing"

	"github.com/sirupsen/logrus"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"

	"culvert/integration/need"
	"culvert/kube/objects"
)

const storedText = `{"apiVersion": "networking.liqo.io/v1beta1", "kind": "RouteConfiguration",
	"metadata": {"name": "r", "namespace": "liqo", "resourceVersion": "8", "generation": 3, "labels": {"a": "b"},
		"creationTimestamp": "2026-11-21T00:00:00Z", "managedFields": [{"manager": "m", "fieldsV1": {"f:spec": {}}}]},
	"spec": {"table": {"name": "t", "number": 12345678901234567890, "rules": []}},
	"status": {"conditions": [{"host": "other", "status": "True"}], "count": 7}}`

// clientOf returns a client of a server that answers each request, by method and path, with a
// status and a body.
func clientOf(t *testing.T, answer func(method, path string, body []byte) (int, string)) dynamic.ResourceInterface {
	t.Helper()
	api := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			t.Error(err)
		}
		status, text := answer(r.Method, r.URL.Path, body)
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(status)
		io.WriteString(w, text)
	}))
	t.Cleanup(api.Close)
	client, err := NewClient(&rest.Config{Host: api.URL})
	need.NoError(t, err)
	return client.Resource(objects.LiqoResource("RouteConfiguration")).Namespace("liqo")
}

// An object that is written back differs from the one that was read only where it was changed.
func TestObjectsAreWrittenBackWhole(t *testing.T) {
	var path string
	var written []byte
	client := clientOf(t, func(method, at string, body []byte) (int, string) {
		if method == http.MethodPut {
			path, written = at, body
			return http.StatusOK, string(body)
		}
		return http.StatusOK, storedText
	})
	u, err := client.Get(t.Context(), "r", metav1.GetOptions{})
	need.NoError(t, err)
	was, _, err := unstructured.NestedSlice(u.Object, "status", "conditions")
	if err != nil || len(was) != 1 {
		t.Fatalf("conditions %v, %v", was, err)
	}
	need.NoError(t, unstructured.SetNestedField(u.Object, "False", "status", "value"))
	back, err := client.UpdateStatus(t.Context(), u, metav1.UpdateOptions{})
	need.NoError(t, err)
	if back.GetName() != "r" || back.GetLabels()["a"] != "b" || back.GetCreationTimestamp().Year() != 2026 {
		t.Errorf("the answer is %v", back)
	}
	decode := func(text []byte) (o map[string]any) {
		d := json.NewDecoder(bytes.NewReader(text))
		d.UseNumber()
		if err := d.Decode(&o); err != nil {
			t.Fatalf("%v: %s", err, text)
		}
		return o
	}
	want := decode([]byte(storedText))
	want["status"].(map[string]any)["value"] = "False"
	if got := decode(written); path !=
		"/apis/networking.liqo.io/v1beta1/namespaces/liqo/routeconfigurations/r/status" ||
		!reflect.DeepEqual(got, want) {
		t.Errorf("%s: written\n%v, want\n%v", path, got, want)
	}
}

// Lists and watches keep the text of each object's spec.
func TestSpecsKeepTheirText(t *testing.T) {
	watched := fmt.Sprintf(`{"type": "ADDED", "object": %s}
{"type": "BOOKMARK", "object": {"apiVersion": "networking.liqo.io/v1beta1", "kind": "RouteConfiguration", "metadata": {"resourceVersion": "9"}}}
{"type": "ERROR", "object": {"apiVersion": "v1", "kind": "Status", "code": 410, "reason": "Expired"}}
`, storedText)
	answer := fmt.Sprintf(`{"apiVersion": "networking.liqo.io/v1beta1", "kind": "RouteConfigurationList", "metadata": {"resourceVersion": "77"}, "items": [%s, %s]}`, storedText, storedText)
	client := clientOf(t, func(string, string, []byte) (int, string) { return http.StatusOK, answer })
	requireSpec := func(u any) {
		t.Helper()
		o := objects.Of("RouteConfiguration", u.(*unstructured.Unstructured))
		var got, want map[string]any
		need.NoError(t, json.Unmarshal([]byte(storedText), &want))
		if err := json.Unmarshal(o.Spec, &got); err != nil || !reflect.DeepEqual(got, want["spec"]) ||
			o.Metadata.Labels["a"] != "b" {
			t.Errorf("%s of %v (%v)", o.Spec, o.Metadata, err)
		}
	}
	l, err := client.List(t.Context(), metav1.ListOptions{})
	if err != nil || len(l.Items) != 2 || l.GetResourceVersion() != "77" {
		t.Fatalf("%+v, %v", l, err)
	}
	requireSpec(&l.Items[1])

	answer = watched
	w, err := client.Watch(t.Context(), metav1.ListOptions{})
	need.NoError(t, err)
	defer w.Stop()
	added, bookmark, refusal := <-w.ResultChan(), <-w.ResultChan(), <-w.ResultChan()
	if added.Type != watch.Added || bookmark.Type != watch.Bookmark ||
		bookmark.Object.(*unstructured.Unstructured).GetResourceVersion() != "9" {
		t.Errorf("%v, %v", added, bookmark)
	}
	requireSpec(added.Object)
	if err := apierrors.FromObject(refusal.Object); refusal.Type != watch.Error || !apierrors.IsResourceExpired(err) {
		t.Errorf("%v: %v", refusal, err)
	}
}

// Errors that the API server sends instead of an object are understood.
func TestRefusalsAreUnderstood(t *testing.T) {
	for _, tt := range []struct {
		code   int
		text   string
		really func(error) bool
	}{
		{http.StatusConflict, `{"apiVersion": "v1", "kind": "Status", "code": 409, "reason": "Conflict"}`,
			apierrors.IsConflict},
		{http.StatusNotFound, `{"apiVersion": "v1", "kind": "Status", "code": 404, "reason": "NotFound"}`,
			apierrors.IsNotFound},
		{http.StatusForbidden, "no JSON", apierrors.IsForbidden},
		{http.StatusOK, "no JSON", func(err error) bool { return err != nil }},
		{http.StatusOK, `{"apiVersion": "v1", "kind": "Status", "metadata": 7}`, func(err error) bool {
			return err != nil
		}},
		{http.StatusOK, `{"items": {}}`, func(err error) bool { return err != nil }},
		{http.StatusOK, `{"items": [7]}`, func(err error) bool { return err != nil }},
	} {
		client := clientOf(t, func(string, string, []byte) (int, string) { return tt.code, tt.text })
		if _, err := client.Get(t.Context(), "r", metav1.GetOptions{}); !tt.really(err) {
			t.Errorf("%d %s: %v", tt.code, tt.text, err)
		}
	}
}

// However many requests there are, no decoder is wrapped around another.
func TestRequestsDoNotNestDecoders(t *testing.T) {
	s := rawSpecs{dynamic.ConfigFor(&rest.Config{}).NegotiatedSerializer}
	for range 2 {
		for _, info := range s.SupportedMediaTypes() {
			if raw, ok := info.Serializer.(rawSpec); !ok {
				t.Errorf("%s: specs do not stay as they are", info.MediaType)
			} else if _, nested := raw.Serializer.(rawSpec); nested {
				t.Errorf("%s: a decoder around a decoder", info.MediaType)
			}
		}
	}
}

// A trimmed list is read in parts, each of which keeps only what Read returns. A list that is not
// trimmed is read from the API server's cache.
func TestListsInParts(t *testing.T) {
	type request struct{ limit, at, version string }
	for _, trims := range []bool{true, false} {
		var mu sync.Mutex
		var asked []request
		api := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			q := r.URL.Query()
			w.Header().Set("Content-Type", "application/json")
			if q.Get("watch") != "" {
				<-r.Context().Done()
				return
			}
			mu.Lock()
			asked = append(asked, request{q.Get("limit"), q.Get("continue"), q.Get("resourceVersion")})
			mu.Unlock()
			more := map[string]string{"": `, "continue": "1"`, "1": ""}[q.Get("continue")]
			fmt.Fprintf(w,
				`{"kind": "List", "metadata": {"resourceVersion": "7"%s}, "items": [{"metadata": {"name": "r%s"}, "spec": {"large": true}}]}`, more, q.Get("continue"))
		}))
		defer api.Close()
		client, err := NewClient(&rest.Config{Host: api.URL})
		need.NoError(t, err)
		log := logrus.New()
		log.SetOutput(io.Discard)
		l := NewLoop(client, new(sync.Mutex), Reporter{}, logrus.NewEntry(log))
		ctx, cancel := context.WithCancel(t.Context())
		var got []string
		l.Follow(ctx, Set{Resource: objects.LiqoResource("RouteConfiguration"), Large: trims, Listed: cancel,
			Read: func(u *unstructured.Unstructured) func(string) {
				if u.Object["spec"] == nil {
					t.Errorf("trims %t: %v", trims, u)
				}
				return func(key string) { got = append(got, key) }
			}})
		if !slices.Equal(got, []string{"r", "r1"}) {
			t.Errorf("trims %t: %q", trims, got)
		}
		version := map[bool]string{true: "", false: "0"}[trims]
		if want := []request{{"500", "", version}, {"500", "1", ""}}; !slices.Equal(asked, want) {
			t.Errorf("trims %t: asked %v, want %v", trims, asked, want)
		}
	}
}
