package control

import (
	"context"
	"net/http"
)

// A Rule is a compiled rule with its counters.
type Rule struct {
	Origin   string `json:"origin"`          // kind/name, or kind/namespace/name, of its source
	Field    string `json:"field,omitempty"` // of the configuration file, such as rules[0]
	Place    string `json:"place,omitempty"` // file:line of Field; filled in by clients, which can read the file
	Stage    string `json:"stage"`           // where on a packet's path; a listing is in order of evaluation
	Priority int32  `json:"priority"`
	Table    string `json:"table"`
	Chain    string `json:"chain"`
	Name     string `json:"name,omitempty"` // "" = the policy of the chain
	Match    string `json:"match,omitempty"`
	Action   string `json:"action"`
	// Packets and Bytes are absent for rules that are not counted.
	Packets *uint64 `json:"packets,omitempty"`
	Bytes   *uint64 `json:"bytes,omitempty"`
}

// A Route is a route of a compiled policy rule.
type Route struct {
	Origin      string `json:"origin"`
	Field       string `json:"field,omitempty"` // as in Rule
	Place       string `json:"place,omitempty"`
	Rule        string `json:"rule"` // table/number
	Priority    int    `json:"priority"`
	In          string `json:"in,omitempty"` // node, or tunnel, from which packets come
	Mark        uint32 `json:"mark,omitempty"`
	Source      string `json:"source,omitempty"` // prefix; absent = any
	Destination string `json:"destination"`
	To          string `json:"to"` // node, or tunnel
	Via         string `json:"via,omitempty"`
}

func serveRules(s Source) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		l := newLines(w)
		l.end(s.Rules(r.Context(), func(v *Rule) bool { return l.line(v) }))
	}
}

func serveRoutes(s Source) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		l := newLines(w)
		l.end(s.Routes(r.Context(), func(v *Route) bool { return l.line(v) }))
	}
}

// rulesSource is a Source that lists rules.
type rulesSource interface {
	// Rules and Routes call yield for each, in the order of evaluation, until it returns false.
	Rules(ctx context.Context, yield func(*Rule) bool) error
	Routes(ctx context.Context, yield func(*Route) bool) error
}
