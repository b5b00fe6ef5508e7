package lifecycle

import (
	"encoding/binary"
	"io"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/sirupsen/logrus"

	"culvert/gateway/config"
	"culvert/gateway/config/configtest"
	"culvert/gateway/path"
	"culvert/gateway/sweep"
	"culvert/integration/need"
	"culvert/nat"
	"culvert/nat/nattest"
	"culvert/nat/packet"
)

// BenchmarkKeep writes a million translated connections to a folder, once with pauses, as while
// packets come, and once without, as at the end, and restores them with another keeper.
func BenchmarkKeep(b *testing.B) {
	const n = 1_000_000
	c := configtest.Cluster("rome", "milan", config.Client, "10.61.0.0/16", "10.71.0.0/16")
	c.MaxConnections, c.State = 3*n+3, b.TempDir()
	log := logrus.New()
	log.SetOutput(io.Discard)
	var current config.Current
	links := config.Links{}.Assign(c.Geneve.Nodes)
	current.Set(c, links)
	open := func() (*keeper, *nat.Engine) {
		k, err := openKeeper(New(Options{Log: logrus.NewEntry(log), Current: &current, AsOf: time.Now}, nil), c)
		need.NoError(b, err)
		engine, err := nat.New(k.identity.PortKey, c.NAT(links, 0))
		need.NoError(b, err)
		return k, engine
	}
	k, engine := open()
	k.restore(engine, links) // the folder is empty
	first := nattest.IP{Source: "11.0.0.0", Destination: "10.61.1.5", Body: nattest.UDP{SourcePort: 4000,
		DestinationPort: 53, Payload: make([]byte, 10)}}.Bytes()
	var p packet.Packet
	for i := range n {
		bytes := append([]byte(nil), first...)
		binary.BigEndian.PutUint32(bytes[12:], 11<<24+uint32(i))
		// connections to different destinations can share a port of U
		binary.BigEndian.PutUint16(bytes[22:], uint16(i>>4))
		p.Parse(nattest.Fix(bytes))
		if v := engine.Process(&p, links.ByName[c.Geneve.Nodes[0].Name], path.Now()); v.Action != nat.Forward ||
			v.Untracked {
			b.Fatal(v.Reason)
		}
	}
	timed := func(what string, do func()) {
		begun := time.Now()
		do()
		b.ReportMetric(time.Since(begun).Seconds()*1000, "ms-"+what)
	}
	for range b.N {
		// what is measured
		timed("kept-beside-packets", func() { k.keepConnections(func() { time.Sleep(sweep.Pause) }) })
		timed("kept", func() { k.keepConnections(func() {}) })
		info, err := os.Stat(filepath.Join(k.Dir.Path(), "connections"))
		need.NoError(b, err)
		b.ReportMetric(float64(info.Size())/n, "B/connection")
		k.Close()
		k, engine = open()
		timed("restored", func() { k.restore(engine, links) })
		if r := k.restored; r.Connections != n || !r.Whole {
			b.Fatalf("%+v", r)
		}
	}
	k.Close()
}
