package deploy

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"k8s.io/client-go/rest"
)

// TestSurveyRights: a user needs no right for a kind that the cluster lacks; for one that it has,
// the error names the right.
func TestSurveyRights(t *testing.T) {
	for _, c := range []struct{ what, answer, want string }{
		{"no group", "", ""},
		{"no such kind in the group", `{"resources": [{"name": "felixconfigurations"}]}`, ""},
		{"the kind", `{"resources": [{"name": "ippools"}]}`,
			"ask an administrator of the cluster for the right to list ippools.crd.projectcalico.org"},
		{"no true answer", "<html>", "list ippools: "},
	} {
		t.Run(c.what, func(t *testing.T) {
			const group = "/apis/crd.projectcalico.org/v1"
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				w.Header().Set("Content-Type", "application/json")
				switch {
				case r.URL.Path == group+"/ippools": // as authorization answers whether there are pools or not
					w.WriteHeader(http.StatusForbidden)
					w.Write([]byte(`{"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "Forbidden",
						"code": 403, "message": "ippools.crd.projectcalico.org is forbidden"}`))
				case r.URL.Path == group && c.answer == "":
					http.NotFound(w, r)
				case r.URL.Path == group:
					w.Write([]byte(c.answer))
				default:
					w.Write([]byte(`{"kind": "List", "apiVersion": "v1", "items": []}`))
				}
			}))
			defer server.Close()
			cluster, err := New(&rest.Config{Host: server.URL})
			if err != nil {
				t.Fatal(err)
			}
			_, err = cluster.Survey(t.Context())
			if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
				t.Errorf("%v, want %q", err, c.want)
			}
		})
	}
}
