package inspect

import (
	"testing"

	"culvert/gateway/control"
	"culvert/gateway/path"
	"culvert/nat"
	"culvert/nat/nattest"
	"culvert/nat/packet"
)

// TestListingAllocations: listing a connection does not allocate.
func TestListingAllocations(t *testing.T) {
	src := newSource(t)
	const connections = 2000
	c, links := src.Current.Get()
	link := links.ByName[c.Geneve.Nodes[0].Name]
	for i := range connections {
		var parsed packet.Packet
		parsed.Parse(nattest.IP{Source: "10.0.1.5", Destination: "10.61.2.7",
			Body: nattest.UDP{SourcePort: uint16(1024 + i), DestinationPort: 53}}.Bytes())
		if v := src.Path.Engine.Process(&parsed, link, path.Now()); v.Action != nat.Forward {
			t.Fatal(v.Reason)
		}
	}
	listed := 0
	allocations := testing.AllocsPerRun(3, func() {
		listed = 0
		err := src.Connections(t.Context(), &control.Filter{}, func(*control.Connection) bool {
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
