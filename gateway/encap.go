package gateway

import (
	"github.com/sirupsen/logrus"

	"culvert/geneve"
	"culvert/nat"
)

// tellEncaps tells what nodes were found to speak whose encapsulation is auto.
func (g *Gateway) tellEncaps() {
	for _, change := range g.endpoint.EncapChanges() {
		entry := g.log.WithFields(logrus.Fields{"node": g.nodeName(nat.Link(change.Tunnel)), "encap": change.Is.String()})
		if change.Was == geneve.Auto {
			entry.Info("the node is heard, and answered in kind")
		} else {
			entry.WithField("was", change.Was.String()).Warn("the node speaks another encapsulation, after a minute of silence; set encap in its entry if it should not")
		}
	}
}
