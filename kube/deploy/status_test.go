package deploy

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"k8s.io/client-go/rest"

	"culvert/integration/need"
)

// TestStatusIsOfNow: what a gateway has said of an earlier spec says nothing about this one,
// neither that packets pass nor what is missing.
func TestStatusIsOfNow(t *testing.T) {
	generation := int64(0)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprintf(w,
			`{"apiVersion": "culvert.io/v1alpha1", "kind": "Peering", "metadata": {"name": "milan", "namespace": "culvert", "generation": %d},
			"status": {"publicKey": "k", "message": "no key", "conditions": [{"type": "Accepted", "status": "True", "observedGeneration": 7}, {"type": "Connected", "status": "True", "observedGeneration": 7}, {"type": "Other", "observedGeneration": 3}]}}`, generation)
	}))
	defer server.Close()
	c, err := New(&rest.Config{Host: server.URL})
	need.NoError(t, err)
	for generation = range int64(9) {
		s, err := c.Status(t.Context(), "milan")
		if err != nil || s.PublicKey != "k" || (len(s.Conditions) == 3) != (generation == 7) ||
			(s.Message == "no key") != (generation == 7) {
			t.Errorf("generation %d: %+v, %v", generation, s, err)
		}
	}
}

// TestKeyIsOfSecret: the key that the peer gets is that of the Secret, of a gateway that stays, and
// the private one is not asked for.
func TestKeyIsOfSecret(t *testing.T) {
	var pod, annotation string
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		switch {
		case strings.Contains(r.URL.Path, "/secrets/"):
			if !strings.Contains(r.Header.Get("Accept"), "PartialObjectMetadata") {
				t.Errorf("%s: the whole Secret is asked for", r.URL)
			}
			fmt.Fprintf(w, `{"metadata": {"annotations": {%s}}}`, annotation)
		case strings.Contains(r.URL.Path, "/pods/"):
			fmt.Fprintf(w, `{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a" %s}}`, pod)
		default:
			fmt.Fprint(w,
				`{"apiVersion": "culvert.io/v1alpha1", "kind": "Peering", "metadata": {"name": "milan"}, "status": {"publicKey": "k", "active": {"pod": "a"}}}`)
		}
	}))
	defer server.Close()
	c, err := New(&rest.Config{Host: server.URL})
	need.NoError(t, err)
	for _, tt := range []struct{ pod, annotation, missing string }{
		{"", `"culvert.io/public-key": "k"`, ""},
		{"", ``, ""}, // of an older version
		{"", `"culvert.io/public-key": "other"`,
			"a gateway with the key of Secret culvert-milan, whose public one is other"},
		{`, "deletionTimestamp": "2026-01-01T00:00:00Z"`, `"culvert.io/public-key": "k"`,
			"another gateway in the place of pod a, which ends"},
	} {
		pod, annotation = tt.pod, tt.annotation
		key, missing, err := c.Key(t.Context(), "milan")
		if err != nil || !strings.HasPrefix(missing, tt.missing) || (missing == "") != (tt.missing == "") ||
			(key == "k") != (missing == "") {
			t.Errorf("%+v: %q, %q, %v", tt, key, missing, err)
		}
	}
}
