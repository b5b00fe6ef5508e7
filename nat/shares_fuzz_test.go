package nat

import (
	"encoding/binary"
	"fmt"
	"slices"
	"testing"
	"time"

	"culvert/integration/need"
	"culvert/nat/nattest"
	"culvert/nat/packet"
	"culvert/nat/rules"
)

// recount compares every share counter of e with the content of its tables.
func recount(t testing.TB, e *Engine) {
	t.Helper()
	recountRanks(t, &e.table)
	recountClosed(t, &e.table)
	s := &e.table.shares
	want := map[uint64]uint32{}
	take := func(h holder) {
		want[max(h.address, 1)]++
		want[max(h.network, 1)]++
		want[max(h.link, 1)]++
	}
	connections := 0
	for number := uint32(1); number < e.table.high; number++ {
		c := e.table.at(number)
		if !c.live() {
			continue
		}
		connections++
		h := e.table.holder(c)
		take(h.of(shareConnections))
		if !c.has(flagPort) {
			continue
		}
		t := e.table.tuple(c, reply)
		space, _ := e.table.portSpace(&t)
		want[space]++
		if c.has(flagPortShare) {
			take(h.within(space))
		}
	}
	datagrams, holds := 0, 0
	for _, g := range e.fragments.index {
		if !g.complete {
			datagrams++
			take(g.holder.of(shareDatagrams))
		}
		for h := g.held; h != nil; h = h.next {
			holds++
			take(g.holder.of(shareHeld))
		}
	}
	clients := recountClients(t, e, want)
	if connections != e.table.used || datagrams != e.fragments.partial.length || holds != e.fragments.holds ||
		clients != e.clients.used {
		t.Fatalf("%d connections, %d datagrams, %d held, %d clients; counted %d, %d, %d, %d", connections, datagrams,
			holds, clients,
			e.table.used, e.fragments.partial.length, e.fragments.holds, e.clients.used)
	}
	counters := 0
	for i := range s.shards {
		sh, used := &s.shards[i], 0
		for j, identity := range sh.identities {
			if identity == 0 {
				continue
			}
			used++
			if sh.counts[j] == 0 || sh.counts[j] != want[identity] {
				t.Fatalf("counter %x is %d, want %d", identity, sh.counts[j], want[identity])
			}
		}
		if used != sh.used {
			t.Fatalf("shard %d has %d counters and says %d", i, used, sh.used)
		}
		counters += used
	}
	if counters != len(want) {
		t.Fatalf("%d counters, want %d", counters, len(want))
	}
}

// recountClients returns the number of remembered clients of services, and adds what they hold to
// want. It fails if their lists, their directory and their counters differ.
func recountClients(t testing.TB, e *Engine, want map[uint64]uint32) (clients int) {
	t.Helper()
	c, s := &e.clients, &e.table.shares
	for identity, l := range c.lists {
		if c.services[l.id] != identity || len(c.services) != len(c.lists) {
			t.Fatalf("list %d is of %v; %d lists of %d services", l.id, c.services[l.id], len(c.lists), len(c.services))
		}
		length := 0
		for number := l.first; number != 0; number = c.at(number).next {
			a := c.at(number)
			if found := c.find(&a.key, a.key.hash(s)); a.key.list != l.id || found != number {
				t.Fatalf("client %d of list %d, at %d, is found at %d", number, a.key.list, l.id, found)
			}
			if network, ok := a.key.network(s); ok {
				want[max(network, 1)]++
			}
			length++
		}
		if length != l.length {
			t.Fatalf("%v has %d clients and says %d", identity, length, l.length)
		}
		clients += length
	}
	filed := 0
	for i, b := range c.directory.buckets {
		if i > 0 && b.slots == c.directory.buckets[i-1].slots {
			continue
		}
		for _, slot := range b.slots {
			if slot != 0 {
				filed++
			}
		}
	}
	if filed != clients {
		t.Fatalf("%d clients, %d in the directory", clients, filed)
	}
	return clients
}

// ipv6 makes a UDP packet, or a fragment of one, from pods and others at a link.
func ipv6(in Link, a, b, x uint8, fragment bool, y uint8) []byte {
	p := nattest.IP{Source: fmt.Sprintf("fd00:200:0:1::%x", 1+b%8), Destination: "fd00:71:0:4000::9"}
	switch {
	case in == Tunnel:
		p.Source, p.Destination = fmt.Sprintf("fd00:200::%x", 1+b%8), fmt.Sprintf("fd00:200:0:1::%x", 1+a%4)
	case a%4 == 0:
		p.Source = fmt.Sprintf("2001:db8:0:%x::%x", a>>4, 1+b%8)
	}
	p.Body = nattest.UDP{SourcePort: 2000 + uint16(x)%16, DestinationPort: 53, Payload: make([]byte, 48)}
	if fragment {
		return nattest.Pieces(p, 16, uint32(x%8))[y%4]
	}
	return p.Bytes()
}

// sharesConfig has little room, so that every share is reached.
func sharesConfig() *Config {
	c := milan()
	c.MaxConnections, c.GatewayAddress.V6, c.UnknownSource.V6 = 40, addr("fd80::4"), addr("fd00:70::")
	for i := range c.Services {
		c.Services[i].Affinity = rules.AffinityClientIP
	}
	return c
}

// ipv4 makes a packet of UDP or, where offset is not 0, a later fragment.
func ipv4(source, destination [4]byte, sport, dport, id uint16, offset int, more bool) []byte {
	b := make([]byte, 20+16)
	b[0], b[8], b[9] = 0x45, 64, packet.UDP
	binary.BigEndian.PutUint16(b[2:], uint16(len(b)))
	binary.BigEndian.PutUint16(b[4:], id)
	field := uint16(offset / 8)
	if more {
		field |= 0x2000
	}
	binary.BigEndian.PutUint16(b[6:], field)
	copy(b[12:], source[:])
	copy(b[16:], destination[:])
	if offset == 0 {
		binary.BigEndian.PutUint16(b[20:], sport)
		binary.BigEndian.PutUint16(b[22:], dport)
		binary.BigEndian.PutUint16(b[24:], 16)
	}
	binary.BigEndian.PutUint16(b[10:], nattest.Checksum(b[:20]))
	return b
}

// FuzzShares reads its input as packets and fragments of several links and sources, answers, new
// configurations and time. All share counters must equal a recount, and be gone when nothing is
// left.
func FuzzShares(f *testing.F) {
	f.Add([]byte("0123456789abcdefghijklmnopqrstuvwxyz0123456789"))
	many := make([]byte, 3000)
	for i := range many {
		many[i] = byte(i * 7 >> 2)
	}
	f.Add(many)
	f.Fuzz(playShares)
}

func playShares(t *testing.T, ops []byte) {
	if len(ops) > 5*600 {
		return
	}
	c := sharesConfig()
	e, err := New([16]byte{1}, c)
	need.NoError(t, err)
	now := Time(time.Hour)
	links := []Link{Tunnel}
	for _, n := range c.Nodes {
		links = append(links, n.Link)
	}
	local, remote := c.LocalPodCIDRs[0].Addr().As4(), c.Remote[0].Real.Addr().As4()
	seen, service := c.Remote[0].Seen().Addr().As4(), c.Services[0].Address.As4()
	for ; len(ops) >= 5; ops = ops[5:] {
		op, a, b, x, y := ops[0], ops[1], ops[2], ops[3], ops[4]
		in := links[int(op)%len(links)]
		var p packet.Packet
		if op>>5 < 6 && x&0x80 != 0 {
			p.Parse(ipv6(in, a, b, x, op>>5 >= 4, y))
			v := e.Process(&p, in, now)
			for range v.Held {
				e.Release(&p, make([]byte, heldSize), in, now)
			}
			continue
		}
		source, destination := [4]byte{203, 0, a % 4, b % 8}, seen
		destination[3] = 9
		if in == Tunnel {
			source, destination = remote, service
			source[2], source[3] = 3, b%32
			if a%4 == 0 {
				destination = local
				destination[2], destination[3] = 1, 5
			}
		} else if a%8 == 7 {
			source = local
			source[2], source[3] = 1, b%8+1
		}
		port := uint16(2000 + int(x)%16)
		if a&16 != 0 {
			port = 500 + uint16(x)
		}
		switch op >> 5 {
		case 0, 1, 2, 3:
			p.Parse(ipv4(source, destination, port, c.Services[0].Port, 0, 0, false))
			var v Verdict
			if v = e.Process(&p, in, now); v.Action == Forward && y%3 == 0 {
				var answer packet.Tuple
				p.Tuple(&answer, 0)
				q := p.Bytes()
				p.Parse(ipv4([4]byte(q[16:20]), [4]byte(q[12:16]), answer.DestinationPort(), answer.SourcePort(),
					0, 0, false))
				e.Process(&p, v.Out, now)
			}
		case 4, 5:
			p.Parse(ipv4(source, destination, port, c.Services[0].Port, uint16(x%8), int(y%4)*16, y&4 == 0))
			v := e.Process(&p, in, now)
			for range v.Held {
				e.Release(&p, make([]byte, heldSize), in, now)
			}
		case 6:
			now = now.Add(time.Duration(a) * time.Duration(b) * 10 * time.Millisecond)
			e.Sweep(now)
		case 7:
			next := sharesConfig()
			next.MaxConnections = 20 + int(a)
			if b%4 == 0 {
				next.Services = nil
			}
			if b%8 > 3 { // IPv6 hosts that were pods are pods no longer
				next.LocalPodCIDRs[2], next.Routes = pfx("fd00:300::/50"), slices.DeleteFunc(next.Routes,
					func(r rules.Route) bool { return r.Prefix.Addr().Is6() })
			}
			need.NoError(t, e.Apply(next))
		}
	}
	recount(t, e)
	for range 100 {
		now = now.Add(24 * time.Hour)
		e.Sweep(now)
	}
	if recount(t, e); e.table.used != 0 || e.fragments.partial.length != 0 || e.clients.used != 0 {
		t.Fatalf("left: %+v", e.Stats())
	}
	for i := range e.table.shares.shards {
		if n := e.table.shares.shards[i].used; n != 0 {
			t.Fatalf("%d counters are left", n)
		}
	}
	for _, d := range []Direction{e.stats.Inbound, e.stats.Outbound} {
		sum := d.Forwarded + d.Delivered + d.Held
		for _, n := range d.Dropped {
			sum += n
		}
		if sum != d.Received {
			t.Fatalf("%d received, %d accounted for", d.Received, sum)
		}
	}
}

// Which sources share a counter differs between processes; no pattern of addresses makes two
// sources share one, or crowds a shard.
func TestShareIdentities(t *testing.T) {
	var a, b shares
	a.init()
	b.init()
	for name, identify := range map[string]func(s *shares, i uint64) uint64{
		"IPv4":          func(s *shares, i uint64) uint64 { return s.identify(i, 0, 1) },
		"pods of a /64": func(s *shares, i uint64) uint64 { return s.identify(0xfd00<<48, i, 1) },
	} {
		const n = 1 << 16
		seen := map[uint64]bool{}
		for step := range 16 {
			var shards [shareShards]int
			for i := range uint64(n) {
				identity := identify(&a, i<<step)
				seen[identity] = true
				shards[identity>>56]++
			}
			for i, got := range shards {
				if want := n / shareShards; got < want/2 || got > want*2 {
					t.Errorf("%s, step %d: %d of %d sources are in shard %d", name, step, got, n, i)
				}
			}
		}
		// Of 16 times 65,536 addresses, each step shares half with the one before.
		if want := n + 15*n/2; len(seen) != want {
			t.Errorf("%d identities of %d sources, %s", len(seen), want, name)
		}
		if identify(&a, 1) == identify(&b, 1) {
			t.Errorf("two engines know a source by one identity, %s", name)
		}
	}
}
