package control

import (
	"errors"
	"fmt"
	"net/http"
	"net/url"
)

// Reloaded says what a new configuration has changed or, in a dry run, would change.
type Reloaded struct {
	DryRun   bool     `json:"dryRun"`
	Changes  string   `json:"changes"`            // in words
	Chosen   []string `json:"chosen,omitempty"`   // new remaps and addresses
	Warnings []string `json:"warnings,omitempty"` // what is valid but probably not meant
}

func serveReload(s Source) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		dryRun, err := parseReload(r.URL.Query())
		if err != nil {
			refuse(w, err)
			return
		}
		reloaded, err := s.Reload(r.Context(), dryRun)
		if err != nil {
			refuse(w, err)
			return
		}
		answer(w, reloaded)
	}
}

// parseReload refuses what it does not understand: a misspelt dry run must not change anything.
func parseReload(v url.Values) (dryRun bool, err error) {
	var errs []error
	for name, values := range v {
		switch {
		case name != "dryRun":
			errs = append(errs, fmt.Errorf("%s: unknown parameter; want dryRun=true, or none", name))
		case len(values) != 1:
			errs = append(errs, fmt.Errorf("dryRun: given %d times", len(values)))
		default:
			if dryRun, err = parseBool(values[0]); err != nil {
				errs = append(errs, fmt.Errorf("dryRun: %w", err))
			}
		}
	}
	return dryRun, errors.Join(errs...)
}
