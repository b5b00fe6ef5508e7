package monitor

import (
	"fmt"
	"testing"

	"github.com/sirupsen/logrus"
	logtest "github.com/sirupsen/logrus/hooks/test"

	"culvert/gateway/health"
)

// TestManyNodesAreFewLines: when a thousand nodes fall silent at once, the log says so in
// few lines.
func TestManyNodesAreFewLines(t *testing.T) {
	log, said := logtest.NewNullLogger()
	m := &Monitor{log: logrus.NewEntry(log)}
	changes := make([]health.Finding, 1000)
	for i := range changes {
		changes[i] = health.Finding{Cause: health.NodeSilent, Kind: health.OfNode, Of: fmt.Sprint("node-", i),
			Text: "silent"}
	}
	m.logChanges(append(changes, health.Finding{Cause: health.FirstPacket, Kind: health.OfNode, Of: "other"}))
	entries := said.AllEntries()
	if len(entries) != maxLines+2 {
		t.Fatalf("%d lines", len(entries))
	}
	if last := entries[maxLines+1]; last.Data["nodes"] != 1000-maxLines || last.Data["cause"] != "node-silent" {
		t.Errorf("%v", last.Data)
	}
}
