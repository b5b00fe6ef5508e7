package control

import "net/http"

// Reloaded is what a new configuration has changed, or for a dry run would change.
type Reloaded struct {
	DryRun   bool     `json:"dryRun"`
	Changes  string   `json:"changes"`            // in words
	Chosen   []string `json:"chosen,omitempty"`   // remaps and addresses that were chosen for it
	Warnings []string `json:"warnings,omitempty"` // what the file may mean but probably does not
}

func serveReload(s Source) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		reloaded, err := s.Reload(r.Context(), r.URL.Query().Get("dryRun") == "true")
		if err != nil {
			refuse(w, err)
			return
		}
		answer(w, reloaded)
	}
}
