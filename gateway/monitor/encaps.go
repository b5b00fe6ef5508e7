package monitor

import (
	"github.com/sirupsen/logrus"

	"culvert/geneve"
	"culvert/nat"
)

// LogEncaps logs the encapsulation of nodes whose encap is auto, when it is found.
func (m *Monitor) LogEncaps() {
	for _, change := range m.path.Endpoint.EncapChanges() {
		entry := m.log.WithFields(logrus.Fields{"node": m.current.NodeName(nat.Link(change.Tunnel)),
			"encap": change.Is.String()})
		if change.Was == geneve.Auto {
			entry.Info("the node is heard, and gets answers in the same encapsulation")
		} else {
			entry.WithField("was",
				change.Was.String()).
				Warn("the node speaks another encapsulation, after a minute of silence; set encap in its entry if it should not")
		}
	}
}
