package exports

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"
)

var start = time.Date(2026, 11, 26, 20, 0, 0, 0, time.UTC)

// shop returns a Service with n endpoints.
func shop(i, n int) *Service {
	s := &Service{Namespace: "shop", Name: fmt.Sprintf("web-%03d", i), Type: ClusterSetIP, Created: start,
		Ports: []Port{{"http", "TCP", uint16(80 + i), ""}}, Labels: map[string]string{"tier": fmt.Sprint(i)}}
	if n > 0 {
		s.Endpoints = []Group{{Ports: []Port{{"http", "TCP", 8080, ""}}}}
	}
	for k := range n {
		s.Endpoints[0].Addresses = append(s.Endpoints[0].Addresses, Endpoint{endpoint(i, k), "", Ready})
	}
	return s
}

func endpoint(i, k int) netip.Addr {
	return netip.AddrFrom4([4]byte{10, byte(64 + i>>8), byte(i), byte(k)})
}

// shops returns n Services with two endpoints each.
func shops(n int) []*Service {
	all := []*Service{}
	for i := range n {
		all = append(all, shop(i, 2))
	}
	return all
}

// changed returns a list in which one endpoint of a Service has another state.
func changed(all []*Service, i int, state string) []*Service {
	all = slices.Clone(all)
	s := *all[i]
	s.Endpoints = slices.Clone(s.Endpoints)
	s.Endpoints[0].Addresses = slices.Clone(s.Endpoints[0].Addresses)
	s.Endpoints[0].Addresses[0].State = state
	all[i] = &s
	return all
}

// A pair is two ends and the time between them.
type pair struct {
	t           *testing.T
	rome, milan *Exchange
	now         time.Time
	told        int // datagrams of rome, without acknowledgements
	bytes       int // of these
}

func newPair(t *testing.T) *pair {
	return &pair{t: t, rome: New(MaxDatagram), milan: New(MaxDatagram), now: start}
}

// pass carries what both have to say for a time. lose says what of it is lost.
func (p *pair) pass(d time.Duration, lose func(to string, b []byte) bool) {
	p.t.Helper()
	end := p.now.Add(d)
	for first := p.now; !p.now.After(end); p.now, first = first, end.Add(1) {
		for again := true; again; {
			again, first = false, end.Add(1)
			for _, way := range []struct {
				from, to *Exchange
				name     string
			}{{p.rome, p.milan, "milan"}, {p.milan, p.rome, "rome"}} {
				datagrams, next := way.from.Due(p.now)
				if !next.IsZero() && next.Before(first) {
					if first = next; !next.After(p.now) {
						p.t.Fatalf("due again at once, after %d datagrams", len(datagrams))
					}
				}
				for _, b := range datagrams {
					if len(b) > MaxDatagram {
						p.t.Fatalf("a datagram of %d bytes", len(b))
					}
					if again = true; way.name == "milan" && b[len(magic)+1] == kindPart {
						p.told++
						p.bytes += len(b)
					}
					if lose == nil || !lose(way.name, b) {
						way.to.Receive(b)
					}
				}
			}
		}
	}
}

func (p *pair) requireHeard(want []*Service) {
	p.t.Helper()
	if list, fault, known := p.milan.Heard(); !known || fault != "" || !reflect.DeepEqual(list, want) {
		p.t.Fatalf("milan has heard %d Services, %q, %t; want %d", len(list), fault, known, len(want))
	}
}

// TestExchange: a list arrives whole, in parts and empty; a new one takes its place; and silence
// changes nothing.
func TestExchange(t *testing.T) {
	for _, n := range []int{0, 1, 2, 40, MaxServices} {
		p := newPair(t)
		if datagrams, next := p.rome.Due(p.now); datagrams != nil || !next.IsZero() {
			t.Fatalf("%d datagrams before there is a list", len(datagrams))
		}
		p.rome.Tell(shops(n))
		p.pass(5*time.Second, nil)
		p.requireHeard(shops(n))
		if d := p.rome.Unanswered(p.now.Add(time.Hour)); d != 0 {
			t.Errorf("%d Services are not acknowledged for %v", n, d)
		}
		select {
		case <-p.milan.Changed():
		default:
			t.Error("milan's Changed says nothing")
		}
		p.rome.Tell(shops(n + 1)[1:])
		p.pass(time.Second, nil)
		p.requireHeard(shops(n + 1)[1:])
		p.pass(time.Hour, func(string, []byte) bool { return true })
		p.requireHeard(shops(n + 1)[1:])
	}
}

// TestServices: each field of a Service arrives.
func TestServices(t *testing.T) {
	all := []*Service{
		{Namespace: "shop", Name: "db", Type: Headless, Created: start, Annotations: map[string]string{"a/b": "\"ü\"\n"},
			Endpoints: []Group{{Addresses: []Endpoint{{netip.MustParseAddr("10.244.0.7"), "db-0", NotReady},
				{netip.MustParseAddr("10.244.0.8"), "db-1", Serving},
				{netip.MustParseAddr("fd00::7"), "", Terminating}}}}},
		{Namespace: "shop", Name: "web", Type: ClusterSetIP, Created: start.Add(time.Second), Affinity: "ClientIP",
			AffinityFor: 60, InternalTrafficPolicy: "Local", TrafficDistribution: "PreferClose",
			Labels: map[string]string{"app": "web"}, Ports: []Port{{"http", "TCP", 80, "kubernetes.io/h2c"}, {"", "UDP", 53, ""}}},
		{Namespace: "shop", Name: "web", Type: Labelled, Ports: []Port{{"", "SCTP", 9, ""}}, Endpoints: []Group{
			{Addresses: []Endpoint{{netip.MustParseAddr("10.70.0.9"), "", Ready}}}}},
	}
	p := newPair(t)
	p.rome.Tell(all)
	p.pass(time.Second, nil)
	p.requireHeard(all)
	for _, s := range all {
		b, err := json.Marshal(s)
		if err != nil || len(b) > s.Size() || s.Check() != nil {
			t.Errorf("%s: %d bytes, of at most %d; %v %v", b, len(b), s.Size(), err, s.Check())
		}
	}
	two := shop(1, 3)
	two.Endpoints = append(two.Endpoints, Group{Ports: []Port{{"http", "TCP", 9090, ""}},
		Addresses: []Endpoint{{endpoint(1, 0), "", Ready}}})
	p.rome.Tell([]*Service{two})
	p.pass(time.Second, nil)
	if list, _, _ := p.milan.Heard(); len(list) != 1 || len(list[0].Endpoints) != 2 {
		t.Errorf("two groups of endpoints, and %d Services arrive", len(list))
	}
}

// TestOneEndpoint: a changed endpoint of 20,000 costs one datagram, and so does a reminder. The
// Services that have not changed are the same.
func TestOneEndpoint(t *testing.T) {
	var all []*Service
	for i := range MaxServices {
		all = append(all, shop(i, MaxEndpoints/MaxServices))
	}
	p := newPair(t)
	p.rome.Tell(all)
	p.pass(5*time.Second, nil)
	p.requireHeard(all)
	before, _, _ := p.milan.Heard()
	if p.bytes > 500_000 {
		t.Errorf("the list costs %d bytes", p.bytes)
	}
	for i := range 10 {
		p.told, p.bytes = 0, 0
		next := changed(all, i, NotReady)
		p.rome.Tell(next)
		p.pass(0, nil)
		p.requireHeard(next)
		if p.told != 1 || p.bytes > 200 {
			t.Errorf("a changed endpoint costs %d datagrams with %d bytes", p.told, p.bytes)
		}
		all = next
		p.pass(breath, nil)
	}
	p.told = 0
	p.pass(10*remind, nil)
	if p.told != 10 {
		t.Errorf("%d reminders", p.told)
	}
	if after, _, _ := p.milan.Heard(); after[100] != before[100] || after[1] == before[1] {
		t.Error("Services that have not changed are read again, or others are not")
	}
}

// TestPace: each 300 ms until it is acknowledged, then every 30 s; a peer that never acknowledges
// is told so for a minute only, and again when packets pass again. Ten messages a second tell of
// changes that never end.
func TestPace(t *testing.T) {
	deaf := func(to string, _ []byte) bool { return to == "milan" }
	for _, c := range []struct {
		name  string
		lose  func(string, []byte) bool
		d     time.Duration
		least int
		most  int
	}{
		{"nothing arrives", deaf, 3 * time.Second, 10, 11},
		{"no acknowledgement arrives", func(to string, _ []byte) bool { return to == "rome" }, 3 * time.Second, 10, 11},
		{"nobody there", deaf, time.Minute + 5*time.Minute, 200 + 10, 200 + 12},
		{"acknowledged", nil, 5*time.Minute + time.Second, 12, 12},
	} {
		p := newPair(t)
		p.rome.Tell(shops(1))
		if p.pass(c.d, c.lose); p.told < c.least || p.told > c.most {
			t.Errorf("%s: %d datagrams in %v, want %d to %d", c.name, p.told, c.d, c.least, c.most)
		}
		told := p.told
		p.pass(0, nil)
		p.rome.Reached()
		if p.pass(breath, nil); p.told == told {
			t.Errorf("%s: nothing is told when packets pass again", c.name)
		}
	}
	p := newPair(t)
	all := shops(2)
	p.rome.Tell(all)
	p.pass(time.Second, nil)
	p.told = 0
	for i := range 2000 {
		p.rome.Tell(changed(all, 0, states[i%2]))
		p.pass(5*time.Millisecond, nil)
	}
	if p.told < 90 || p.told > 105 {
		t.Errorf("%d messages in 10 s", p.told)
	}
}

// TestLateList: a message of an earlier list that is late is put right at once.
func TestLateList(t *testing.T) {
	p := newPair(t)
	p.rome.Tell(shops(1))
	var late [][]byte
	p.pass(time.Second, func(_ string, b []byte) bool { late = append(late, b); return false })
	p.rome.Tell(shops(2))
	p.pass(time.Second, nil)
	p.requireHeard(shops(2))
	for _, b := range late {
		p.milan.Receive(b)
		p.rome.Receive(b)
		p.pass(2*breath, nil)
		p.requireHeard(shops(2))
	}
}

// TestBeginsAnew: either side begins without a memory, and the lists are the same again at once if
// it says that packets pass, and within 30 s if not. The other side's list is told again only if it
// is needed.
func TestBeginsAnew(t *testing.T) {
	p := newPair(t)
	p.rome.Tell(shops(100))
	p.pass(5*time.Second, nil)
	p.milan = New(MaxDatagram)
	p.pass(remind, nil)
	p.requireHeard(shops(100))
	p.milan = New(MaxDatagram)
	p.milan.Reached()
	p.pass(time.Second, nil)
	p.requireHeard(shops(100))
	for _, list := range [][]*Service{shops(100), shops(99)} {
		p.rome, p.told = New(MaxDatagram), 0
		p.rome.Tell(list)
		p.rome.Reached()
		p.pass(time.Second, nil)
		p.requireHeard(list)
		if len(list) == 100 && p.told != 1 {
			t.Errorf("the same list again costs %d datagrams", p.told)
		}
	}
}

// TestLossyNetwork: over networks that lose, repeat and reorder, the last list arrives in the end,
// and nothing but lists that were told.
func TestLossyNetwork(t *testing.T) {
	for seed := range uint64(60) {
		r := rand.New(rand.NewPCG(seed, 0))
		p := newPair(t)
		p.rome = New(500 + r.IntN(700))
		told := map[string]bool{}
		var late [][]byte
		lose := func(to string, b []byte) bool {
			if r.IntN(4) == 0 {
				late = append(late, b)
			}
			if len(late) > 0 && r.IntN(4) == 0 {
				p.milan.Receive(late[r.IntN(len(late))])
				p.rome.Receive(late[r.IntN(len(late))])
			}
			return r.IntN(3) == 0
		}
		text := func(all []*Service) string { b, _ := json.Marshal(all); return string(b) }
		var last []*Service
		for range 10 {
			if last = shops(r.IntN(150)); r.IntN(2) > 0 && len(last) > 0 {
				last = changed(last, r.IntN(len(last)), Serving)
			}
			told[text(last)] = true
			p.rome.Tell(last)
			p.pass(time.Duration(r.IntN(2000))*time.Millisecond, lose)
			if list, _, known := p.milan.Heard(); known && !told[text(list)] {
				t.Fatalf("seed %d: milan has a list of %d Services that nobody told", seed, len(list))
			}
			if r.IntN(10) == 0 {
				p.milan = New(MaxDatagram)
			}
		}
		p.pass(time.Minute, nil)
		p.requireHeard(last)
	}
}

// message returns the datagram of a whole list with one part.
func whole(records string, target hash) []byte {
	return append(head(kindPart, 0, 1, hash{}, target), records...)
}

// TestLies: what a peer says that breaks a limit is refused with a reason, and leaves the list
// before.
func TestLies(t *testing.T) {
	list := func(edit func(s *Service)) []byte {
		l, s := newList(), shop(1, 1)
		edit(s)
		for key, content := range s.records() {
			l.set(change{key: key, content: content})
		}
		return whole(string(encode(l.changes())), l.hash)
	}
	record := func(key, content string) []byte {
		return whole(string(encode([]change{{key: key, content: content}})), hash{9})
	}
	key, service := shop(1, 0).key(), encoded(shop(1, 0))
	newer := whole("", hash{})
	newer[len(magic)] = 9
	for _, c := range []struct {
		name  string
		b     []byte
		ok    bool
		fault string
	}{
		{"junk", []byte("junk"), false, ""},
		{"short", whole("", hash{})[:20], false, ""},
		{"no parts", head(kindPart, 0, 0, hash{}, hash{}), false, ""},
		{"too many parts", head(kindPart, 0, maxParts+1, hash{}, hash{}), false, ""},
		{"part after the last", head(kindPart, 2, 2, hash{}, hash{}), false, ""},
		{"other kind", head(7, 0, 1, hash{}, hash{}), false, ""},
		{"long acknowledgement", append(head(kindAcknowledged, 0, 0, hash{}, hash{}), "x"...), false, ""},
		{"newer", newer, false, "it is told in version 9, and this gateway reads version 2; upgrade the older gateway"},
		{"wrong hash", whole("", hash{1, 1}), true, "it has another hash than it says"},
		{"cut", record(key, service)[:header+9], true, errEnd.Error()},
		{"too long", append(record(key, service), "x"...), true, errEnd.Error()},
		{"key that begins with too much", whole("\x09\x01x\x01", hash{9}), true, errEnd.Error()},
		{"content without an end", whole("\x00\x04\x00\x01a\x00\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", hash{9}),
			true, errEnd.Error()},
		{"the same record twice", whole("\x00\x04\x00\x01a\x00\x00\x04\x00\x00", hash{9}), true,
			"its records are not in order"},
		{"unknown kind of record", record(key+"abc", ""), true, errEnd.Error()},
		{"unknown kind of Service", record("\x02\x00\x00", service), true, errEnd.Error()},
		{"64 bytes", list(func(s *Service) { s.Name = strings.Repeat("x", 64) }), true,
			"a name of 64 bytes; at most 63 are possible"},
		{"64 bytes of a host", list(func(s *Service) { s.Endpoints[0].Addresses[0].Host = strings.Repeat("x", 64) }),
			true, "a name of 64 bytes; at most 63 are possible"},
		{"no JSON", record(key, "x"), true, "an unreadable Service: invalid character 'x' looking for beginning of value"},
		{"no JSON of ports", record(key+"12345678", "x"), true,
			"unreadable ports: invalid character 'x' looking for beginning of value"},
		{"no state", record(key+"12345678abcd", ""), true, "an endpoint without a state"},
		{"unknown state", record(key+"12345678abcd", "\x04"), true, "an endpoint without a state"},
		{"type", list(func(s *Service) { s.Type = "x" }), true, `a Service of type "x"`},
		{"other type", record("\x01"+key[1:], service), true, "a Service of type ClusterSetIP where none is"},
		{"501 ports", list(func(s *Service) { s.Ports = make([]Port, MaxPorts+1) }), true,
			"a Service with 501 ports; at most 500 are possible"},
		{"501 ports of endpoints", list(func(s *Service) { s.Endpoints[0].Ports = make([]Port, MaxPorts+1) }), true,
			"a Service with 501 ports; at most 500 are possible"},
		{"101 labels", list(func(s *Service) {
			for i := range MaxTexts + 1 {
				s.Labels[fmt.Sprint(i)] = ""
			}
		}), true, "a Service with more than 100 labels or annotations"},
		{"a time that has no text", record(key, strings.Replace(service, "2026-11-26T20:00:00Z",
			"9999-12-31T23:59:59-01:00", 1)), true, "a Service of the year 10000"},
	} {
		p := newPair(t)
		p.rome.Tell(shops(3))
		p.pass(time.Second, nil)
		if ok := p.milan.Receive(c.b); ok != c.ok {
			t.Errorf("%s: %t", c.name, ok)
		}
		p.milan.Due(p.now)
		all, fault, known := p.milan.Heard()
		if fault != c.fault || !known || len(all) != 3 {
			t.Errorf("%s: %d Services, fault %q, want %q", c.name, len(all), fault, c.fault)
		}
		p.pass(remind, nil)
		p.requireHeard(shops(3)) // and the fault is forgotten when the peer tells a good one
	}
}

// TestTooMuch: lists that are too long are refused with a reason, whole and as a difference, and
// leave what there was.
func TestTooMuch(t *testing.T) {
	many := func(n, endpoints int) (all []*Service) {
		for i := range n {
			all = append(all, shop(i, endpoints))
		}
		return all
	}
	labelled := many(MaxServices+1, 0)
	for _, s := range labelled {
		s.Type = Labelled
	}
	large := many(2, 0)
	large[1].Annotations = map[string]string{"a": strings.Repeat("x", MaxSize-1000)}
	for want, all := range map[string][]*Service{
		"it has more than 500 Services":    many(MaxServices+1, 0),
		"it has more than 500 Services ":   labelled,
		"it has more than 20000 endpoints": append(many(499, 40), shop(500, 41)),
		"it has more than 1400000 bytes":   large,
	} {
		p := newPair(t)
		p.rome.Tell(all[1:])
		p.pass(10*time.Second, nil)
		if want == "it has more than 1400000 bytes" {
			large[0].Annotations = map[string]string{"a": strings.Repeat("x", 2000)}
		}
		if want == "it has more than 20000 endpoints" {
			all[0] = shop(0, 80)
		}
		p.requireHeard(all[1:])
		p.rome.Tell(all)
		p.pass(time.Second, nil)
		if list, fault, _ := p.milan.Heard(); len(list) != len(all)-1 || fault != strings.TrimSpace(want) {
			t.Errorf("a difference: %d Services, fault %q, want %q", len(list), fault, want)
		}
		p.rome = New(MaxDatagram)
		p.rome.Tell(all)
		p.pass(10*time.Second, nil)
		if list, fault, _ := p.milan.Heard(); len(list) != len(all)-1 || fault != strings.TrimSpace(want) {
			t.Errorf("whole: %d Services, fault %q, want %q", len(list), fault, want)
		}
		p.rome.Tell(all[1:])
		p.pass(time.Minute, nil)
		p.requireHeard(all[1:])
	}
}

// TestEndlessLies: parts that never complete a message, and a message that changes all the time,
// leave what there was and take bounded memory.
func TestEndlessLies(t *testing.T) {
	p := newPair(t)
	p.rome.Tell(shops(3))
	p.pass(time.Second, nil)
	piece := make([]byte, MaxDatagram)
	refused := false
	for i := range 3 * maxParts {
		if !p.milan.Receive(append(head(kindPart, i%maxParts, maxParts, hash{}, hash{2, byte(i / maxParts)}),
			piece...)) {
			refused = true
		}
		if size := p.milan.inbox.size; size > MaxSize {
			t.Fatalf("%d bytes are kept", size)
		}
	}
	p.milan.Due(p.now)
	if _, fault, _ := p.milan.Heard(); !refused || !strings.HasPrefix(fault, "it has more than ") {
		t.Errorf("fault %q", fault)
	}
	p.milan.hearing.fault = ""
	for i := range 1000 {
		p.milan.Receive(append(head(kindPart, 0, 2, hash{}, hash{byte(i), byte(i >> 8), 1}), piece...))
		p.milan.Receive(head(kindAcknowledged, 0, 0, hash{}, hash{byte(i), byte(i >> 8), 1}))
	}
	if n := len(p.milan.inbox.partial.pieces); n != 2 {
		t.Errorf("pieces of %d parts are kept", n)
	}
	if n := len(p.milan.inbox.acknowledged); n > burst {
		t.Errorf("%d acknowledgements are kept", n)
	}
	p.milan.Due(p.now)
	p.requireHeard(shops(3))
}

// TestLiarsMemory: the largest lists that a peer can make take bounded memory.
func TestLiarsMemory(t *testing.T) {
	tiny := &Service{Type: ClusterSetIP, Labels: map[string]string{}, Annotations: map[string]string{}}
	for i := range MaxTexts {
		tiny.Labels[fmt.Sprint(i)], tiny.Annotations[fmt.Sprint(i)] = "", ""
	}
	for name, all := range map[string]func() map[string]string{
		"ports": func() map[string]string {
			return map[string]string{"": `{"type":"Headless","ports":[` + strings.Repeat("{},", MaxPorts-1) + "{}]}"}
		},
		"labels": func() map[string]string { return map[string]string{"": encoded(tiny)} },
		"hosts": func() map[string]string {
			all := map[string]string{"": `{"type":"Headless"}`}
			for k := range 25 {
				all[fmt.Sprintf("12345678000000000000%04d", k)] = "\x00" + strings.Repeat("x", maxLabel)
			}
			return all
		},
		"groups": func() map[string]string {
			all := map[string]string{"": `{"type":"Headless"}`}
			for k := range 80 {
				all[fmt.Sprintf("%08d", k)] = "[]"
			}
			return all
		},
	} {
		l := newList()
		for i := 0; i < MaxServices && l.size < MaxSize-10_000; i++ {
			key := (&Service{Namespace: strings.Repeat("n", 63), Name: fmt.Sprintf("%063d", i)}).key()
			for rest, content := range all() {
				l.set(change{key: key + rest, content: content})
			}
		}
		b := encode(l.changes())
		x, target := New(MaxDatagram), l.hash
		l = nil
		var before, after runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&before)
		pieces := slices.Collect(slices.Chunk(b, MaxDatagram))
		for i, piece := range pieces {
			x.Receive(append(head(kindPart, i, len(pieces), hash{}, target), piece...))
		}
		x.Due(start)
		if _, fault, known := x.Heard(); !known || fault != "" {
			t.Errorf("%s: %q", name, fault)
		}
		runtime.GC()
		runtime.ReadMemStats(&after)
		took := (int64(after.HeapAlloc) - int64(before.HeapAlloc)) >> 20
		t.Logf("%s: %d bytes, %d MiB", name, len(b), took)
		if took > 24 {
			t.Errorf("%s: a list of %d bytes takes %d MiB", name, len(b), took)
		}
		runtime.KeepAlive(x)
	}
}

// TestLargestList: a list within the limits goes through the smallest tunnel.
func TestLargestList(t *testing.T) {
	var all []*Service
	size := 0
	for i := range MaxServices {
		s := shop(i, 20)
		s.Name = fmt.Sprintf("%063d", i)
		for k := range s.Endpoints[0].Addresses {
			s.Endpoints[0].Addresses[k].Host = fmt.Sprintf("%063d", k)
		}
		size += s.Size()
		all = append(all, s)
	}
	p := newPair(t)
	p.rome = New(1)
	p.rome.Tell(all)
	p.pass(20*time.Second, nil)
	p.requireHeard(all)
	text, err := json.Marshal(all)
	if err != nil || len(text) > size || size > MaxSize || p.told > maxParts {
		t.Errorf("%d bytes of text, of %d; %d parts, of at most %d", len(text), size, p.told, maxParts)
	}
}

func FuzzReceive(f *testing.F) {
	for _, n := range []int{0, 2, 30} {
		l := newList()
		for _, s := range shops(n) {
			for key, content := range s.records() {
				l.set(change{key: key, content: content})
			}
		}
		f.Add(encode(l.changes()))
	}
	f.Add(encode([]change{{key: shop(1, 0).key(), gone: true}}))
	f.Fuzz(func(t *testing.T, b []byte) {
		x := New(MaxDatagram)
		x.Tell(shops(1))
		x.Receive(b)
		all, err := decode(b)
		if err != nil {
			return
		}
		l, again := newList(), newList()
		for _, c := range all {
			l.set(c)
		}
		x.Receive(whole(string(b), l.hash))
		x.Due(start)
		list, fault, known := x.Heard()
		if !known || fault != "" {
			t.Errorf("fault %q", fault)
		}
		for _, s := range list {
			if text, err := json.Marshal(s); err != nil {
				t.Errorf("%v: %s", err, text)
			}
		}
		if all, err = decode(encode(l.changes())); err != nil {
			t.Error(err)
		}
		if err := again.apply(all, l.hash); err != nil || !reflect.DeepEqual(again, l) && len(l.services) > 0 &&
			again.size != l.size {
			t.Errorf("%v: %d bytes, %d bytes", err, again.size, l.size)
		}
	})
}

// TestAsks: a gateway that begins anew asks for the list, and has it at once, although the peer
// knows that it had it; it asks no more often than lists are told, and not at all once it knows
// one.
func TestAsks(t *testing.T) {
	p := newPair(t)
	p.rome.Tell(shops(3))
	p.pass(time.Second, nil)
	p.requireHeard(shops(3))
	p.milan = New(MaxDatagram)
	if asks, next := p.milan.Due(p.now); asks != nil || !next.IsZero() {
		t.Errorf("%d datagrams before the peer can be reached", len(asks))
	}
	p.milan.Reached()
	asks, next := p.milan.Due(p.now)
	if len(asks) != 1 || next.Sub(p.now) != anew {
		t.Fatalf("%d datagrams, and again in %v", len(asks), next.Sub(p.now))
	}
	if again, _ := p.milan.Due(next.Add(-time.Millisecond)); again != nil {
		t.Error("it asks again before it is time")
	}
	if !p.rome.Receive(asks[0]) {
		t.Error("a question is of no use")
	}
	p.pass(0, nil)
	p.requireHeard(shops(3))
	p.milan.Reached()
	if asks, next := p.milan.Due(p.now); asks != nil || !next.IsZero() {
		t.Errorf("%d datagrams with a list", len(asks))
	}

	lonely, asked := New(MaxDatagram), 0
	lonely.Reached()
	for now := start; now.Before(start.Add(5 * time.Minute)); _, now = lonely.Due(now) {
		datagrams, _ := lonely.Due(now)
		asked += len(datagrams)
	}
	if asked != 61+7 {
		t.Errorf("a peer that is silent is asked %d times", asked)
	}
	p.milan.Forget()
	if _, _, known := p.milan.Heard(); known {
		t.Error("a list that is forgotten is known")
	}
	p.milan.Reached()
	p.pass(time.Second, nil)
	p.requireHeard(shops(3))
}

// BenchmarkOneEndpoint is both ends' work for a changed endpoint of 20,000.
func BenchmarkOneEndpoint(b *testing.B) {
	var all []*Service
	for i := range MaxServices {
		all = append(all, shop(i, MaxEndpoints/MaxServices))
	}
	rome, milan, now := New(MaxDatagram), New(MaxDatagram), start
	pass := func() {
		for range 2 {
			datagrams, _ := rome.Due(now)
			for _, d := range datagrams {
				milan.Receive(d)
			}
			datagrams, _ = milan.Due(now)
			for _, d := range datagrams {
				rome.Receive(d)
			}
			now = now.Add(breath)
		}
	}
	rome.Tell(all)
	for range 1000 {
		pass()
	}
	for i := 0; b.Loop(); i++ {
		rome.Tell(changed(all, i%MaxServices, NotReady))
		pass()
		milan.Heard()
	}
	if list, _, _ := milan.Heard(); len(list) != MaxServices {
		b.Fatalf("%d Services", len(list))
	}
}
