package gateway

import (
	"encoding/binary"
	"regexp"
	"testing"
	"time"

	"culvert/gateway/config"
	"culvert/gateway/control"
	"culvert/gateway/handover"
	"culvert/gateway/path"
	"culvert/geneve/genevetest"
	"culvert/integration/need"
	"culvert/nat"
	"culvert/nat/nattest"
	"culvert/nat/packet"
)

// strangers makes n connections in rome's table, each from a different unknown source, and returns
// a function that sends a packet of one.
func (p *pair) strangers(t testing.TB, n int) (send func(i int)) {
	t.Helper()
	return p.fill(t, n, func(packet []byte, i int) {
		binary.BigEndian.PutUint32(packet[12:], 11<<24|uint32(i))
		binary.BigEndian.PutUint16(packet[18:], uint16(i))
	})
}

// fill makes n connections in rome's table, with packets that number changes, and returns a
// function that sends a packet of one.
func (p *pair) fill(t testing.TB, n int, number func(packet []byte, i int)) (send func(i int)) {
	t.Helper()
	link, ok := p.rome.links().ByName[p.rome.config().Geneve.Nodes[0].Name]
	if !ok {
		t.Fatal("no node")
	}
	template := nattest.IP{Source: "11.0.0.0", Destination: "10.61.0.0", Body: nattest.UDP{SourcePort: 4000,
		DestinationPort: 53, Payload: []byte("x")}}.Bytes()
	work := make([]byte, len(template))
	var parsed packet.Packet
	process := func(i int) nat.Verdict {
		copy(work, template)
		number(work, i)
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

// TestHandOverOfPods: a new process hears the old one while that looks at connections that need no
// record, as those between pods. Otherwise it would end the old one.
func TestHandOverOfPods(t *testing.T) {
	const n = 120_000
	p, socket := newHandPair(t, func(c *config.Config) { c.MaxConnections = 4 * n })
	p.fill(t, n, func(packet []byte, i int) {
		const pods = 250
		copy(packet[12:], []byte{10, 0, 1, byte(2 + i%pods), 10, 61, 1, 7})
		binary.BigEndian.PutUint16(packet[20:], uint16(1024+i/pods))
	})
	conn, err := control.TakeOver(t.Context(), socket, control.TakeoverOptions{Protocol: handover.Version,
		Cluster: "rome", Peer: "milan"})
	need.NoError(t, err)
	f := &fakeNext{handover.NewLine(conn), t}
	defer f.Close()
	f.want(handover.KindOffer)
	messages, records := 0, 0
	for {
		k, body, _, err := f.Receive(genevetest.Timeout)
		need.NoError(t, err)
		if k != handover.KindRecords {
			break
		}
		messages, records = messages+1, records+len(body)
	}
	if messages < 2 || records > nat.RecordBlock {
		t.Errorf("%d messages of %d bytes, want at least 2 of one block", messages, records)
	}
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
