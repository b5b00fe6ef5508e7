package exports

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"reflect"
	"strings"
	"testing"
	"time"
)

var start = time.Date(2026, 11, 26, 20, 0, 0, 0, time.UTC)

// shops returns a list of n Services with a port each.
func shops(n int) []Export {
	all := []Export{}
	address := netip.MustParseAddr("10.70.0.0")
	for i := range n {
		address = address.Next()
		all = append(all, Export{"shop", fmt.Sprint("web-", i), address, []LabelPort{{"http", 6, uint16(80 + i)}}})
	}
	return all
}

// pair is two ends and the time between them.
type pair struct {
	t           *testing.T
	rome, milan *Exchange
	now         time.Time
	told        int // datagrams of rome
}

func newPair(t *testing.T) *pair {
	return &pair{t: t, rome: New(MaxDatagram), milan: New(MaxDatagram), now: start}
}

// pass carries what rome has to say, and milan's answers, until a time. lose says what of it is
// lost.
func (p *pair) pass(until time.Time, lose func(to string, b []byte) bool) {
	p.t.Helper()
	for !p.now.After(until) {
		datagrams, _ := p.rome.Due(p.now)
		for _, b := range datagrams {
			p.told++
			if len(b) > MaxDatagram {
				p.t.Fatalf("a datagram of %d bytes", len(b))
			}
			if lose != nil && lose("milan", b) {
				continue
			}
			if answer, _ := p.milan.Receive(b); answer != nil && (lose == nil || !lose("rome", answer)) {
				p.rome.Receive(answer)
			}
		}
		_, next := p.rome.Due(p.now)
		if next.IsZero() {
			return
		}
		p.now = next
	}
}

func (p *pair) requireHeard(want []Export) {
	p.t.Helper()
	if list, fault, known := p.milan.Heard(); !known || fault != "" || !reflect.DeepEqual(list, want) {
		p.t.Fatalf("milan has heard %d exports, %q, %t; want %d", len(list), fault, known, len(want))
	}
}

// TestExchange: a list arrives whole, in parts and empty; a new one takes its place; and silence
// changes nothing.
func TestExchange(t *testing.T) {
	for _, n := range []int{0, 1, 2, 40, MaxPorts} {
		p := newPair(t)
		if datagrams, next := p.rome.Due(p.now); datagrams != nil || !next.IsZero() {
			t.Fatalf("%d datagrams before there is a list", len(datagrams))
		}
		p.rome.Tell(shops(n))
		p.pass(start, nil)
		p.requireHeard(shops(n))
		if d := p.rome.Unanswered(start.Add(time.Hour)); d != 0 {
			t.Errorf("%d exports are not acknowledged for %v", n, d)
		}
		select {
		case <-p.milan.Changed():
		default:
			t.Error("milan's Changed says nothing")
		}
		p.rome.Tell(shops(n + 1)[1:])
		p.pass(p.now, nil)
		p.requireHeard(shops(n + 1)[1:])
		p.pass(start.Add(time.Hour), func(string, []byte) bool { return true })
		p.requireHeard(shops(n + 1)[1:])
	}
}

// TestPace: each second until it is acknowledged, then every 30 s; a peer that never acknowledges
// is told each second for a minute only, and again when packets pass again.
func TestPace(t *testing.T) {
	deaf := func(to string, _ []byte) bool { return to == "milan" }
	for _, c := range []struct {
		name  string
		lose  func(string, []byte) bool
		until time.Duration
		want  int
	}{
		{"nothing arrives", deaf, 9 * time.Second, 10},
		{"no acknowledgement arrives", func(to string, _ []byte) bool { return to == "rome" }, 9 * time.Second, 10},
		{"nobody there", deaf, time.Minute + 5*time.Minute, 61 + 10},
		{"acknowledged", nil, 5 * time.Minute, 11},
	} {
		p := newPair(t)
		p.rome.Tell(shops(1))
		if p.pass(start.Add(c.until), c.lose); p.told != c.want {
			t.Errorf("%s: %d datagrams in %v, want %d", c.name, p.told, c.until, c.want)
		}
		told := p.told
		p.rome.Tell(shops(1))
		if d, _ := p.rome.Due(p.now.Add(-time.Millisecond)); d != nil {
			t.Errorf("%s: the same list is told anew", c.name)
		}
		p.rome.Reached()
		if p.pass(p.now.Add(-time.Second), nil); p.told == told && c.want > 1 {
			p.pass(p.now, nil)
		}
		if p.told == told {
			t.Errorf("%s: nothing is told when packets pass again", c.name)
		}
	}
}

// TestLateList: a part of an earlier list that is late is put right within a second.
func TestLateList(t *testing.T) {
	p := newPair(t)
	p.rome.Tell(shops(1))
	late, _ := p.rome.Due(p.now)
	p.rome.Tell(shops(2))
	p.pass(p.now, nil)
	p.requireHeard(shops(2))
	answer, _ := p.milan.Receive(late[0])
	p.requireHeard(shops(1))
	p.rome.Receive(answer)
	p.pass(p.now, nil)
	p.requireHeard(shops(2))
}

// TestPeerBeginsAnew: a peer without a memory has the list within 30 s.
func TestPeerBeginsAnew(t *testing.T) {
	p := newPair(t)
	p.rome.Tell(shops(100))
	p.pass(start, nil)
	p.milan = New(MaxDatagram)
	p.pass(start.Add(remind), nil)
	p.requireHeard(shops(100))
}

// TestLossyNetwork: over networks that lose, repeat and reorder, the last list arrives in the end,
// and nothing but lists that were told.
func TestLossyNetwork(t *testing.T) {
	for seed := range uint64(200) {
		r := rand.New(rand.NewPCG(seed, 0))
		p := newPair(t)
		p.rome = New(500 + r.IntN(700))
		told := map[string]bool{}
		var late [][]byte
		lose := func(to string, b []byte) bool {
			if to == "milan" && r.IntN(4) == 0 {
				late = append(late, b)
			}
			if len(late) > 0 && r.IntN(4) == 0 {
				p.milan.Receive(late[r.IntN(len(late))])
			}
			return r.IntN(3) == 0
		}
		var last []Export
		for range 3 {
			last = shops(r.IntN(MaxPorts))
			told[fmt.Sprint(last)] = true
			p.rome.Tell(last)
			p.pass(p.now.Add(time.Duration(r.IntN(5))*time.Second), lose)
			if list, _, known := p.milan.Heard(); known && !told[fmt.Sprint(list)] {
				t.Fatalf("seed %d: milan has a list of %d exports that nobody told", seed, len(list))
			}
		}
		p.pass(p.now.Add(5*time.Minute), nil)
		p.requireHeard(last)
	}
}

// TestLies: what a peer says that breaks a limit is refused with a reason, costs one list at most,
// and leaves the list before.
func TestLies(t *testing.T) {
	datagram := func(index, count int, h hash, piece string) []byte {
		return append(head(kindPart, index, count, h), piece...)
	}
	whole := func(list string) []byte { return datagram(0, 1, hashOf([]byte(list)), list) }
	ports := func(n int) string {
		all := shops(1)
		all[0].Ports = make([]LabelPort, n)
		return string(encode(all))
	}
	newer := whole("\x00\x00")
	newer[len(magic)] = 9
	for _, c := range []struct {
		name  string
		b     []byte
		ok    bool
		fault string
	}{
		{"junk", []byte("junk"), false, ""},
		{"short", datagram(0, 1, hash{}, "")[:20], false, ""},
		{"no piece", datagram(0, 1, hash{}, ""), false, ""},
		{"no parts", datagram(0, 0, hash{}, "x"), false, ""},
		{"too many parts", datagram(0, maxParts+1, hash{}, "x"), false, ""},
		{"part after the last", datagram(2, 2, hash{}, "x"), false, ""},
		{"other kind", append(head(7, 0, 1, hash{}), "x"...), false, ""},
		{"long acknowledgement", append(head(kindAcknowledged, 0, 0, hash{}), "x"...), false, ""},
		{"newer", newer, false, "it is told in version 9, and this gateway reads version 1; upgrade the older gateway"},
		{"wrong hash", datagram(0, 1, hash{1}, "\x00\x00"), false, "it has another hash than it says"},
		{"501 ports", whole(ports(MaxPorts + 1)), false, "more than 500 ports"},
		{"no ports", whole(ports(0)), false, "an export without ports"},
		{"cut", whole(ports(3)[:20]), false, errEnd.Error()},
		{"too long", whole(ports(3) + "x"), false, errEnd.Error()},
		{"long name", whole("\x00\x01\xff" + strings.Repeat("x", 255)), false,
			"a name of 255 bytes; at most 63 are possible"},
		{"address", whole("\x00\x01\x01a\x01b\x03abc\x00\x01"), false, "an address of 3 bytes"},
	} {
		p := newPair(t)
		p.rome.Tell(shops(3))
		p.pass(start, nil)
		if answer, ok := p.milan.Receive(c.b); ok != c.ok || answer != nil {
			t.Errorf("%s: %t, answer %x", c.name, ok, answer)
		}
		list, fault, known := p.milan.Heard()
		if fault != c.fault || !known || len(list) != 3 {
			t.Errorf("%s: %d exports, fault %q, want %q", c.name, len(list), fault, c.fault)
		}
		p.pass(p.now.Add(remind), nil)
		p.requireHeard(shops(3)) // and the fault is forgotten when the peer tells a good one
	}
}

// TestEndlessLies: parts that never complete a list, and a list that changes all the time, leave
// what there was and take bounded memory.
func TestEndlessLies(t *testing.T) {
	p := newPair(t)
	p.rome.Tell(shops(3))
	p.pass(start, nil)
	piece := make([]byte, MaxDatagram)
	refused := false
	for i := range 3 * maxParts {
		if _, ok := p.milan.Receive(append(head(kindPart, i%maxParts, maxParts, hash{byte(i / maxParts)}),
			piece...)); !ok {
			refused = true
		}
		if size := p.milan.hearing.size; size > maxList {
			t.Fatalf("%d bytes are kept", size)
		}
	}
	if _, fault, _ := p.milan.Heard(); !refused || !strings.HasPrefix(fault, "it has more than ") {
		t.Errorf("fault %q", fault)
	}
	p.milan.hearing.fault = ""
	for i := range 1000 {
		p.milan.Receive(append(head(kindPart, 0, 2, hash{byte(i), byte(i >> 8), 1}), piece...))
	}
	p.requireHeard(shops(3))
	if n := len(p.milan.hearing.pieces); n != 2 {
		t.Errorf("pieces of %d parts are kept", n)
	}
}

// TestLargestList: a list within the limits goes through the smallest tunnel.
func TestLargestList(t *testing.T) {
	var all []Export
	for i := range MaxPorts {
		name := fmt.Sprintf("%063d", i)
		all = append(all, Export{name, name, netip.MustParseAddr("fd00::1"), []LabelPort{{name, 17, uint16(i)}}})
	}
	p := newPair(t)
	p.rome = New(1)
	p.rome.Tell(all)
	p.pass(start, nil)
	p.requireHeard(all)
	if p.told > maxParts {
		t.Errorf("%d parts, of at most %d", p.told, maxParts)
	}
}

func FuzzReceive(f *testing.F) {
	for _, n := range []int{0, 2, 30} {
		x := New(MaxDatagram)
		x.Tell(shops(n))
		all, _ := x.Due(start)
		for _, b := range all {
			f.Add(b)
		}
	}
	f.Add(head(kindAcknowledged, 0, 0, hash{}))
	f.Fuzz(func(t *testing.T, b []byte) {
		x := New(MaxDatagram)
		x.Tell(shops(1))
		answer, ok := x.Receive(b)
		if answer != nil && !ok {
			t.Error("an answer to what is of no use")
		}
		if list, fault, known := x.Heard(); known {
			if fault != "" || answer == nil {
				t.Errorf("fault %q, answer %x of a list that is taken", fault, answer)
			}
			again, err := decode(encode(list))
			if err != nil || len(again) != len(list) || len(list) > 0 && !reflect.DeepEqual(again, list) {
				t.Errorf("%v is read as %v, %v", list, again, err)
			}
		}
		if all, err := decode(b); err == nil && string(encode(all)) != string(b) {
			t.Errorf("%x is read as %v, which is %x", b, all, encode(all))
		}
	})
}

// TestAsks: a gateway that begins anew asks for the list, and has it at once, although the peer
// knows that it had it; it asks no more often than lists are told, and not at all once it knows
// one.
func TestAsks(t *testing.T) {
	p := newPair(t)
	p.rome.Tell(shops(3))
	p.pass(start, nil)
	p.requireHeard(shops(3))
	p.milan = New(MaxDatagram)
	if asks, next := p.milan.Due(p.now); asks != nil || !next.IsZero() {
		t.Errorf("%d datagrams before the peer can be reached", len(asks))
	}
	p.milan.Reached()
	asks, next := p.milan.Due(p.now)
	if len(asks) != 1 || next.Sub(p.now) != again {
		t.Fatalf("%d datagrams, and again in %v", len(asks), next.Sub(p.now))
	}
	if again, _ := p.milan.Due(next.Add(-time.Millisecond)); again != nil {
		t.Error("it asks again before it is time")
	}
	if answer, ok := p.rome.Receive(asks[0]); answer != nil || !ok {
		t.Errorf("%x, %t", answer, ok)
	}
	p.pass(p.now, nil)
	p.requireHeard(shops(3))
	p.milan.Reached()
	if asks, next := p.milan.Due(p.now); asks != nil || !next.IsZero() {
		t.Errorf("%d datagrams with a list", len(asks))
	}

	lonely, asked, told := New(MaxDatagram), 0, 0
	lonely.Tell(shops(1))
	lonely.Reached()
	for now := start; now.Before(start.Add(5 * time.Minute)); _, now = lonely.Due(now) {
		datagrams, _ := lonely.Due(now)
		for _, b := range datagrams {
			if b[len(magic)+1] == kindAcknowledged {
				asked++
			} else {
				told++
			}
		}
	}
	if asked != told || asked != 61+7 {
		t.Errorf("a peer that is silent is asked %d times and told %d times", asked, told)
	}
}
