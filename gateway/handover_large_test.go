package gateway

import (
	"encoding/binary"
	"regexp"
	"testing"
	"time"

	"culvert/gateway/config"
	"culvert/gateway/path"
	"culvert/integration/need"
	"culvert/nat"
	"culvert/nat/nattest"
	"culvert/nat/packet"
)

// strangers makes n connections in rome's table, each from a different unknown source, and returns
// a function that sends a packet of one.
func (p *pair) strangers(t testing.TB, n int) (send func(i int)) {
	t.Helper()
	link, ok := p.rome.links().ByName[p.rome.config().Geneve.Nodes[0].Name]
	if !ok {
		t.Fatal("no node")
	}
	template := nattest.IP{Source: "11.0.0.0", Destination: "10.61.0.0", Body: nattest.UDP{SourcePort: 4000, DestinationPort: 53, Payload: []byte("x")}}.Bytes()
	work := make([]byte, len(template))
	var parsed packet.Packet
	process := func(i int) nat.Verdict {
		copy(work, template)
		binary.BigEndian.PutUint32(work[12:], 11<<24|uint32(i))
		binary.BigEndian.PutUint16(work[18:], uint16(i))
		nattest.Fix(work)
		binary.BigEndian.PutUint16(work[26:], 0) // no checksum
		parsed.Parse(work)
		return p.rome.engine.Process(&parsed, link, path.Now())
	}
	for i := range n {
		if v := process(i); v.Action != nat.Forward || v.Untracked {
			t.Fatalf("connection %d: %+v", i, v)
		}
	}
	return func(i int) { process(i) }
}

// TestHandOverOfLargeTable: the records of a table fill many messages.
func TestHandOverOfLargeTable(t *testing.T) {
	const n = 60_000
	p, socket := newHandPair(t, func(c *config.Config) { c.MaxConnections = 4 * n })
	p.strangers(t, n)
	g, err := p.nextRome(t, socket, nil)
	need.NoError(t, err)
	serve(t, g)
	if have := g.engine.Stats().Connections; have < n {
		t.Errorf("%d connections, want %d", have, n)
	}
	p.there(t, 1)
	p.back(t)
}

// BenchmarkHandOver hands over a table of 300,000 connections of unknown sources, some of which
// carry packets meanwhile, 50,000 a second. It prints how long nobody forwards, and the whole
// duration.
func BenchmarkHandOver(b *testing.B) {
	const n = 300_000
	for name, active := range map[string]int{"idle": 1, "active": n} {
		b.Run(name, func(b *testing.B) {
			var pause, all time.Duration
			for range b.N {
				p, socket := newHandPair(b, func(c *config.Config) { c.MaxConnections = 4 * n })
				send := p.strangers(b, n)
				stop, stopped := make(chan struct{}), make(chan struct{})
				go func() {
					defer close(stopped)
					const batch = 50
					tick := time.NewTicker(time.Millisecond)
					defer tick.Stop()
					for i := 0; ; {
						select {
						case <-stop:
							return
						case <-tick.C:
						}
						for range batch {
							send(i % active)
							i += 7919
						}
					}
				}()
				began := time.Now()
				log, text := listeningLog()
				g, err := p.nextRomeLogging(b, socket, nil, log)
				need.NoError(b, err)
				all += time.Since(began)
				close(stop)
				<-stopped
				if have := g.engine.Stats().Connections; have < n {
					b.Fatalf("%d connections, want %d", have, n)
				}
				found := regexp.MustCompile(`pause=(\S+)`).FindSubmatch(text.Bytes())
				if found == nil {
					b.Fatalf("no pause in %s", text)
				}
				took, err := time.ParseDuration(string(found[1]))
				need.NoError(b, err)
				pause = max(pause, took)
				serve(b, g)
				<-p.rome.life.Gone()
			}
			b.ReportMetric(float64(pause.Microseconds())/1000, "ms-longest-pause")
			b.ReportMetric(float64(all.Milliseconds())/float64(b.N), "ms-in-all")
		})
	}
}
