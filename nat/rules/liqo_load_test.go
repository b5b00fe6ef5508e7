package rules

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"culvert/integration/need"
)

// What Liqo's own controllers made, for two nodes and two peerings of overlapping clusters, in
// three versions and settings. The tests of package kube translate it and write the files that are
// read here.
var captures = []string{"main-557c199cf", "v1.2.0", "main-557c199cf-options"}

func loadCapture(t testing.TB, capture, file string, to any) {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("..", "testdata", "liqo-crs", capture, file))
	if err == nil {
		err = json.Unmarshal(b, to)
	}
	need.NoError(t, err)
}

// A capturedGateway is the gateway of one peering, scheduled on node n1, with what it watches.
type capturedGateway struct {
	*Ruleset
	config *Config
	marks  map[string]Link // of the nodes, from the ctmark rules
	pods   map[Link]string // one on each node
}

// The nodes of every capture.
const linkN1, linkN2 = Link(1), Link(2)

// captured compiles what the gateway of a peering selects by its labels. The tables of the peering
// come before those of single addresses, so that a source from the tunnel is remapped rather than
// taken for a mapped host.
func captured(t testing.TB, capture, remote string) capturedGateway {
	t.Helper()
	g := capturedGateway{config: &Config{}, marks: map[string]Link{}, pods: map[Link]string{}}
	loadCapture(t, capture, remote+".json", g.config)
	links := map[string]Link{"n1": linkN1, "n2": linkN2}
	for _, table := range g.config.Routing {
		if link, ok := links[table.Name]; ok {
			g.pods[link] = table.Rules[1].Routes[0].Destination.Addr().String()
		}
	}
	var err error
	if g.Ruleset, err = newRuleset(g.config); err != nil {
		t.Fatal(err)
	}
	for _, r := range g.all() {
		if r.action == ActionCTMark {
			g.marks[fmt.Sprint(r.value)] = links[r.name]
		}
	}
	if len(g.marks) != 2 || len(g.pods) != 2 {
		t.Fatalf("marks %v, pods %v", g.marks, g.pods)
	}
	return g
}
