package gateway

import (
	"testing"

	"culvert/gateway/control"
	"culvert/nat"
	"culvert/nat/nattest"
	"culvert/nat/packet"
)

// TestListingAllocations: connections that are listed leave no garbage each.
func TestListingAllocations(t *testing.T) {
	p := newPipeline(t)
	const connections = 2000
	link := p.links.ByName[p.config.Geneve.Nodes[0].Name]
	for i := range connections {
		var parsed packet.Packet
		parsed.Parse(nattest.IP{Source: "10.0.1.5", Destination: "10.61.2.7", Body: nattest.UDP{SourcePort: uint16(1024 + i), DestinationPort: 53}}.Bytes())
		if v := p.engine.Process(&parsed, link, clock()); v.Action != nat.Forward {
			t.Fatal(v.Reason)
		}
	}
	listed := 0
	allocations := testing.AllocsPerRun(3, func() {
		listed = 0
		err := source{p.Gateway}.Connections(t.Context(), &control.Filter{}, func(*control.Connection) bool {
			listed++
			return true
		})
		if err != nil {
			t.Error(err)
		}
	})
	if listed != connections || allocations > connections/10 {
		t.Errorf("%v allocations for %d connections of %d", allocations, listed, connections)
	}
}
