package nat

import (
	"encoding/binary"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"net/netip"
	"runtime"
	"slices"
	"testing"
	"time"

	"culvert/integration/need"
	"culvert/nat/nattest"
	"culvert/nat/packet"
	"culvert/nat/rules"
	"culvert/nat/siphash"
)

func serviceOf(balance rules.Balance, affinity rules.Affinity, weights ...int) *rules.Balancer {
	s := rules.Service{Name: "web", Address: addr("10.70.0.20"), Port: 80, Protocol: packet.TCP, Balance: balance,
		Affinity: affinity}
	for i, w := range weights {
		s.Backends = append(s.Backends, rules.Backend{Address: netip.AddrFrom4([4]byte{10, 200, byte(i), 5}),
			Port: 8080, Weight: w})
	}
	return rules.NewBalancer(s)
}

var key, otherKey = siphash.NewKey([16]byte{1, 8: 2}), siphash.NewKey([16]byte{1, 8: 3})

// picker returns an engine that chooses by key and remembers up to 1,024 clients.
func picker(key siphash.Key) *Engine {
	e := &Engine{hashKey: key, snapshot: &snapshot{maxEntries: 1024 * affinityRatio}}
	e.table.init()
	e.clients.init()
	return e
}

func client(r *rand.Rand) netip.AddrPort {
	n := r.Uint32()
	return netip.AddrPortFrom(netip.AddrFrom4([4]byte{11, byte(n >> 16), byte(n >> 8), byte(n)}), uint16(r.Uint32()))
}

// pickIndex returns the backend's place in the order of serviceOf.
func pickIndex(e *Engine, s *rules.Balancer, c netip.AddrPort, now Time) int {
	words := s.Client(c)
	n := e.backend(s, &words, now)
	e.remember(s, &words, n, now)
	return int(s.Service.Backends[n].Address.As4()[2])
}

func TestServiceWeights(t *testing.T) {
	for _, balance := range []rules.Balance{rules.BalanceRandom, rules.BalanceHash} {
		e, s := picker(key), serviceOf(balance, rules.AffinityNone, 1, 5, 0, 3) // 0 means 1
		r := rand.New(rand.NewPCG(1, 2))
		var got [4]int
		const clients = 40000
		for range clients {
			got[pickIndex(e, s, client(r), 0)]++
		}
		for i, share := range []float64{0.1, 0.5, 0.1, 0.3} {
			want := share * clients
			if d := math.Abs(float64(got[i]) - want); d > 5*math.Sqrt(want) {
				t.Errorf("balance %d, backend %d: %d connections, want %.0f", balance, i, got[i], want)
			}
		}
	}
}

// The choice is a function of key and client; another key gives another choice.
func TestServiceDeterminism(t *testing.T) {
	for _, balance := range []rules.Balance{rules.BalanceRandom, rules.BalanceHash} {
		a, b := serviceOf(balance, rules.AffinityNone, 1, 1, 1, 1, 1), serviceOf(balance, rules.AffinityNone,
			1, 1, 1, 1, 1)
		e, other := picker(key), picker(otherKey)
		r := rand.New(rand.NewPCG(3, 4))
		differ := 0
		for range 1000 {
			c := client(r)
			x, y, z := pickIndex(e, a, c, 0), pickIndex(e, b, c, Time(time.Hour)), pickIndex(other, b, c, 0)
			if x != y {
				t.Fatalf("balance %d: %v and %v for %v", balance, x, y, c)
			}
			if x != z {
				differ++
			}
		}
		if differ < 700 || differ > 900 { // 4 of 5
			t.Errorf("balance %d: another key changes %d of 1000", balance, differ)
		}
	}
}

// With a consistent hash, a removed backend moves only its own clients, and a new one takes its
// share and moves no others.
func TestServiceConsistency(t *testing.T) {
	before, after := serviceOf(rules.BalanceHash, rules.AffinityNone, 2, 1, 3, 1), serviceOf(rules.BalanceHash,
		rules.AffinityNone, 2, 1, 3)
	e, r := picker(key), rand.New(rand.NewPCG(5, 6))
	moved := 0
	for range 7000 {
		c := client(r)
		old, now := pickIndex(e, before, c, 0), pickIndex(e, after, c, 0)
		switch {
		case old == 3:
			moved++
		case old != now:
			t.Fatalf("%v moves from %d to %d", c, old, now)
		}
	}
	if moved < 850 || moved > 1150 { // 1 of 7
		t.Errorf("the backend had %d of 7000 clients", moved)
	}
}

func TestServiceAffinity(t *testing.T) {
	e, s := picker(key), serviceOf(rules.BalanceRandom, rules.AffinityClientIP, 1, 1, 1, 1, 1, 1, 1)
	host := addr("10.71.2.6")
	first := pickIndex(e, s, netip.AddrPortFrom(host, 1), 1)
	const step = Time(time.Hour)
	now := Time(1)
	for port := range uint16(100) { // each use extends it
		now += 2 * step
		if got := pickIndex(e, s, netip.AddrPortFrom(host, port), now); got != first {
			t.Fatalf("port %d: backend %d, want %d", port, got, first)
		}
	}
	if got := pickIndex(e, s, netip.AddrPortFrom(addr("10.71.2.7"), 1), now); got == first {
		t.Errorf("another client has the same backend; choose other addresses for this test")
	}
	// Without affinity the port decides, and again after the affinity has expired.
	free := serviceOf(rules.BalanceRandom, rules.AffinityNone, 1, 1, 1, 1, 1, 1, 1)
	late := uint16(0)
	for pickIndex(e, free, netip.AddrPortFrom(host, late), 0) == first {
		late++
	}
	if got := pickIndex(e, s, netip.AddrPortFrom(host, late), now+3*step-1); got != first {
		t.Errorf("just before 3 h: backend %d, want %d", got, first)
	}
	now += 3*step - 1
	if got := pickIndex(e, s, netip.AddrPortFrom(host, late), now+3*step); got == first {
		t.Errorf("after 3 h: still backend %d", got)
	}
}

// Affinity survives a new configuration for backends that still exist; a client of another backend
// gets a new one.
func TestServiceAffinityAcrossApply(t *testing.T) {
	c := milan()
	c.Services[0].Affinity, c.Services[0].Backends = rules.AffinityClientIP, nil
	for i := range byte(6) {
		c.Services[0].Backends = append(c.Services[0].Backends,
			rules.Backend{Address: netip.AddrFrom4([4]byte{10, 200, i, 5}), Port: 8080})
	}
	first := rules.NewBalancer(c.Services[0])
	backends := slices.Clone(c.Services[0].Backends)
	e, r := picker(key), rand.New(rand.NewPCG(7, 8))
	before := map[netip.AddrPort]int{}
	for range 60 {
		x := client(r)
		before[x] = pickIndex(e, first, x, 5)
	}
	// Another backend replaces the first, and the others change their order.
	c.Services[0].Backends = append(slices.Clone(backends[2:6]), backends[1],
		rules.Backend{Address: addr("10.200.9.5"), Port: 8080})
	second, gone := rules.NewBalancer(c.Services[0]), 0
	for x, old := range before {
		again := netip.AddrPortFrom(x.Addr(), x.Port()+1) // a new connection of the same client
		got := pickIndex(e, second, again, 6)
		if old != 0 && got != old || got == 0 {
			t.Fatalf("client %v: backend %d before, %d after", x, old, got)
		}
		if old == 0 {
			gone++
		}
	}
	if gone == 0 {
		t.Error("no client had the backend that left")
	}
	if second.Has(netip.MustParseAddrPort("10.200.0.5:8080")) ||
		!second.Has(netip.MustParseAddrPort("10.200.9.5:8080")) {
		t.Error("has: the backends of the second configuration are wrong")
	}
}

// More clients than the table holds cost no more memory, and a new one always gets a backend; it
// replaces the client that was absent longest. Clients of other services are remembered.
func TestServiceAffinityFlood(t *testing.T) {
	e, r := picker(key), rand.New(rand.NewPCG(9, 10))
	flooded, other := serviceOf(rules.BalanceRandom, rules.AffinityClientIP, 1, 1, 1), serviceOf(rules.BalanceRandom,
		rules.AffinityClientIP, 1, 1, 1, 1, 1, 1, 1)
	other.Service.Name = "other"
	host := func(i int) netip.AddrPort {
		return netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 71, 9, byte(i)}), uint16(r.Uint32()))
	}
	var had [50]int
	for i := range had {
		had[i] = pickIndex(e, other, host(i), 0)
	}
	if n := testing.AllocsPerRun(20_000, func() {
		if pickIndex(e, flooded, client(r), 1) < 0 {
			t.Fatal("no backend")
		}
	}); n != 0 {
		t.Errorf("%v allocations per connection", n)
	}
	// A service may use all free places.
	if got, want := e.clients.used, 50+(1024-50)/2; got != want || e.stats.ClientsReplaced < 19_000 {
		t.Errorf("%d clients, want %d; %d replaced", got, want, e.stats.ClientsReplaced)
	}
	latest := client(r)
	want := pickIndex(e, flooded, latest, 2)
	for port := range uint16(50) {
		if got := pickIndex(e, flooded, netip.AddrPortFrom(latest.Addr(), port), 3); got != want {
			t.Fatalf("the latest client moved to %d from %d", got, want)
		}
	}
	for i, want := range had {
		if got := pickIndex(e, other, host(i), 4); got != want {
			t.Fatalf("client %d of another service moved to %d from %d", i, got, want)
		}
	}
	recount(t, e)
}

// The hosts of one IPv6 /64 replace only each other.
func TestServiceAffinityFloodIPv6(t *testing.T) {
	e, r := picker(key), rand.New(rand.NewPCG(11, 12))
	s := serviceOf(rules.BalanceRandom, rules.AffinityClientIP, 1, 1, 1, 1, 1, 1, 1)
	innocent := func(i int) netip.AddrPort {
		return netip.AddrPortFrom(netip.AddrFrom16([16]byte{0xfd, 7: byte(i), 15: 1}), uint16(r.Uint32()))
	}
	var had [50]int
	for i := range had {
		had[i] = pickIndex(e, s, innocent(i), 0)
	}
	for range 20_000 {
		a := [16]byte{0xfd, 1: 1}
		binary.BigEndian.PutUint64(a[8:], r.Uint64())
		pickIndex(e, s, netip.AddrPortFrom(netip.AddrFrom16(a), 1), 1)
	}
	if e.stats.ClientsRefused == 0 || e.stats.ClientsReplaced != 0 {
		t.Errorf("%+v", e.stats)
	}
	for i, want := range had {
		if got := pickIndex(e, s, innocent(i), 4); got != want {
			t.Fatalf("client %d moved to %d from %d", i, got, want)
		}
	}
	for range 1000 { // expired ones make room for others of the /64
		a := [16]byte{0xfd, 1: 1}
		binary.BigEndian.PutUint64(a[8:], r.Uint64())
		pickIndex(e, s, netip.AddrPortFrom(netip.AddrFrom16(a), 1), Time(defaultAffinityTimeout)+2)
	}
	recount(t, e)
}

// A client whose hash equals that of more others than the directory accepts is not remembered, and
// costs no place.
func TestServiceAffinityEqualHashes(t *testing.T) {
	e, r := picker(key), rand.New(rand.NewPCG(15, 16))
	s := serviceOf(rules.BalanceRandom, rules.AffinityClientIP, 1, 1, 1)
	pickIndex(e, s, client(r), 0)
	c := client(r)
	words := s.Client(c)
	of := affinityKey{e.clients.list(identityOf(&s.Service)).id, words.Address()}
	for e.clients.directory.insert(of.hash(&e.table.shares), newReference(1, original)) {
	}
	for range 3 {
		pickIndex(e, s, c, 1)
	}
	if e.clients.used != 1 || e.clients.high != 3 || e.stats.ClientsRefused != 3 {
		t.Errorf("%d clients, %d entries, %+v", e.clients.used, e.clients.high-1, e.stats)
	}
}

// An expired client gives its place back, also if its service is gone.
func TestServiceAffinityExpires(t *testing.T) {
	e, r := picker(key), rand.New(rand.NewPCG(13, 14))
	for i := range 300 {
		s := serviceOf(rules.BalanceRandom, rules.AffinityClientIP, 1)
		s.Service.Name = fmt.Sprint(i)
		pickIndex(e, s, client(r), 0)
	}
	for range 1000 {
		e.clients.expire(e, Time(defaultAffinityTimeout))
	}
	if e.clients.used != 0 || len(e.clients.lists) != 0 {
		t.Fatalf("%d clients of %d services are left", e.clients.used, len(e.clients.lists))
	}
}

// 300 services with affinity cost no memory before they have clients, and nothing at an Apply.
func TestServiceAffinityMemory(t *testing.T) {
	c := milan()
	service := c.Services[0]
	service.Affinity = rules.AffinityClientIP
	c.Services = nil
	for i := range 300 {
		service.Name, service.Port = fmt.Sprint(i), uint16(1000+i)
		c.Services = append(c.Services, service)
	}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	e, err := New([16]byte{}, c)
	need.NoError(t, err)
	for range 3 {
		need.NoError(t, e.Apply(c))
	}
	runtime.ReadMemStats(&after)
	if n := after.TotalAlloc - before.TotalAlloc; n > 16<<20 {
		t.Fatalf("%d bytes for 300 services and four configurations", n)
	}
}

func TestServiceWithoutBackends(t *testing.T) {
	for _, affinity := range []rules.Affinity{rules.AffinityNone, rules.AffinityClientIP} {
		c := milan()
		c.Services[0].Backends, c.Services[0].Affinity = nil, affinity
		e, err := New([16]byte{}, c)
		need.NoError(t, err)
		var p packet.Packet
		p.Parse(nattest.IP{Source: "10.200.2.6", Destination: "10.70.0.20", Body: nattest.TCP{DestinationPort: 80,
			Flags: nattest.SYN}}.Bytes())
		if v := e.Process(&p, Tunnel, 1); v != refuse(ReasonNoBackend, packet.PortUnreachable) {
			t.Errorf("a backend out of none: %+v", v)
		}
	}
}

func BenchmarkServicePick(b *testing.B) {
	for _, n := range []int{2, 10, 100} {
		for _, balance := range []rules.Balance{rules.BalanceRandom, rules.BalanceHash} {
			s := serviceOf(balance, rules.AffinityNone, make([]int, n)...)
			r := rand.New(rand.NewPCG(1, 2))
			b.Run(fmt.Sprintf("balance=%d/backends=%d", balance, n), func(b *testing.B) {
				b.ReportAllocs()
				c, e := client(r), picker(key)
				for b.Loop() {
					words := s.Client(c)
					e.backend(s, &words, 0)
				}
			})
		}
	}
}

// Writing clients does not copy their services, for which packets would wait.
func TestRecordsCopyNoServices(t *testing.T) {
	e := picker(key)
	const n = 20_000
	for i := range n {
		e.clients.list(serviceIdentity{name: fmt.Sprint("service-", i), port: 80, protocol: 6})
	}
	records := e.Records(0, func(Link) string { return "" })
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	need.NoError(t, records.Write(io.Discard, 0, func() {}))
	runtime.ReadMemStats(&after)
	if bytes := after.TotalAlloc - before.TotalAlloc; bytes > 20*n {
		t.Errorf("%d bytes are allocated for %d services", bytes, n)
	}
}
