package gateway

import (
	"encoding/binary"
	"io"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/sirupsen/logrus"

	"culvert/gateway/config"
	"culvert/nat"
	"culvert/nat/nattest"
	"culvert/nat/packet"
)

// BenchmarkKeep keeps a million translated connections in a folder, once with pauses, as while packets come, and once without, as at the
// end, and has another keeper restore them.
func BenchmarkKeep(b *testing.B) {
	const n = 1_000_000
	c := clusterConfig("rome", "milan", config.Client, "10.61.0.0/16", "10.71.0.0/16")
	c.MaxConnections, c.State = 3*n+3, b.TempDir()
	log := logrus.New()
	log.SetOutput(io.Discard)
	open := func() *keeper {
		g := &Gateway{config: c, log: logrus.NewEntry(log)}
		g.links = g.links.Assign(c.Geneve.Nodes)
		var err error
		if g.keeper, err = openKeeper(g, c); err != nil {
			b.Fatal(err)
		}
		if g.engine, err = nat.New(g.keeper.identity.PortKey, c.NAT(g.links, 0)); err != nil {
			b.Fatal(err)
		}
		return g.keeper
	}
	k := open()
	k.restore(k.g.links) // there is nothing
	first := udpPacket("11.0.0.0", "10.61.1.5", make([]byte, 10))
	var p packet.Packet
	for i := range n {
		bytes := append([]byte(nil), first...)
		binary.BigEndian.PutUint32(bytes[12:], 11<<24+uint32(i))
		binary.BigEndian.PutUint16(bytes[22:], uint16(i>>4)) // the ports of U are shared out by where they lead to
		p.Parse(nattest.Fix(bytes))
		if v := k.g.engine.Process(&p, k.g.links.ByName[c.Geneve.Nodes[0].Name], clock()); v.Action != nat.Forward || v.Untracked {
			b.Fatal(v.Reason)
		}
	}
	timed := func(what string, do func()) {
		begun := time.Now()
		do()
		b.ReportMetric(time.Since(begun).Seconds()*1000, "ms-"+what)
	}
	for range b.N {
		timed("kept-beside-packets", func() { k.keepConnections(func() { time.Sleep(keepPause) }) })
		timed("kept", func() { k.keepConnections(func() {}) })
		info, err := os.Stat(filepath.Join(k.dir.Path(), "connections"))
		if err != nil {
			b.Fatal(err)
		}
		b.ReportMetric(float64(info.Size())/n, "B/connection")
		k.close()
		k = open()
		timed("restored", func() { k.restore(k.g.links) })
		if r := k.restored; r.Connections != n || !r.Whole {
			b.Fatalf("%+v", r)
		}
	}
	k.close()
}
