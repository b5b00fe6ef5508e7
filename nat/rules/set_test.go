package rules

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"strings"
	"testing"

	"culvert/integration/need"
	"culvert/nat/packet"
)

// randomResource makes a resource that goes well with any other, by its key.
func (m ruleMaker) randomResource(k int) (Key, Resource) {
	key := Key{"kind", one(m, "", "a"), fmt.Sprint("r", k)}
	r := Resource{Order: int64(m.IntN(3))}
	switch m.IntN(4) {
	case 0:
		// Devices by number, so that two resources claim the same one now and then.
		n := m.IntN(3)
		r.Device = &Device{Link: Link(n + 1), Name: []string{"liqo.abcdefghij", "rome-2", "eth0"}[n],
			Address: PairOf(netip.AddrFrom4([4]byte{10, 80, 0, byte(n + 2)}))}
	case 1:
		r.Tables = m.tables()
	case 2:
		r.Routing = m.routing()
	case 3:
		r.Service = &Service{
			Address: netip.AddrFrom4([4]byte{10, 0, 0, byte(m.IntN(3))}), Port: one(m, uint16(80), 443),
			Protocol: packet.TCP,
			Backends: []Backend{{Address: m.addr(false), Port: uint16(1 + m.IntN(9))}},
		}
		r.Routing = []PolicyTable{{Name: "via", Rules: []PolicyRule{{Priority: 600, Routes: []PolicyRoute{
			{Destination: netip.PrefixFrom(r.Service.Backends[0].Address, 32),
				Device: one(m, firstNodeDevice, "rome-2")},
		}}}}}
	}
	return key, r
}

// decided is all that a set decides about a packet, in words.
func decided(r *Ruleset, v view, mark uint32) string {
	var b strings.Builder
	e := Effects{hits: make([]*rule, 0, 1000), ConnMark: 77}
	for st := range stages {
		if st != stageDNAT && st != stageSNAT {
			fmt.Fprint(&b, st, r.filter(st, &v, &e), " ")
			continue
		}
		bound := r.bind(st, &v)
		fmt.Fprint(&b, st, bound.kind, bound.addr, " ")
		if bound.service != nil {
			fmt.Fprint(&b, bound.service.Service.Backends)
		}
		if bound.rule != nil {
			fmt.Fprint(&b, bound.rule.chain.origin.key, bound.rule.path())
		}
	}
	for _, hit := range e.hits {
		fmt.Fprint(&b, hit.chain.origin.key, hit.path(), " ")
	}
	hop, ok := r.route(v.in, mark, v.src, v.dst)
	fmt.Fprint(&b, e.mark, e.ConnMark, e.NoTrack, e.mss, e.routeMSS, hop.link, hop.via, ok)
	if ok {
		fmt.Fprint(&b, hop.rule.origin.key, hop.rule.path())
	}
	return b.String()
}

// CULVERT_LONG has tests try as many sequences and packets as `make long` says.
const longEnv = "CULVERT_LONG"

// However a set came about, by whatever puts, deletions, refusals and commits of drafts beside each
// other, it decides as one that was made of what is in it at the end.
func TestSetIsWhatIsInIt(t *testing.T) {
	m := newRuleMaker(seedOfRules(t))
	sequences, packets := 300, 100
	switch {
	case os.Getenv(longEnv) != "":
		sequences, packets = 10_000, 1000
	case testing.Short():
		sequences = 40
	}
	for sequence := range sequences {
		s, in := NewSet(), map[Key]Resource{}
		var r *Ruleset
		var drafts [2]*Draft
		var pending [2]map[Key]*Resource
		begin := func(i int) { drafts[i], pending[i] = s.Draft(), map[Key]*Resource{} }
		begin(0)
		begin(1)
		for range 1 + m.IntN(24) {
			i := m.IntN(2)
			d := drafts[i]
			for range 1 + m.IntN(4) {
				switch key, resource := m.randomResource(i + 2*m.IntN(3)); {
				case m.IntN(4) == 0:
					d.Delete(key)
					pending[i][key] = nil
				case d.Put(key, resource) == nil:
					pending[i][key] = &resource
				}
			}
			switch m.IntN(6) {
			case 0:
				d.Discard()
				begin(i)
			case 1, 2:
				d.network = &network{first: one(m, Link(1), 2)}
				r, _ = s.Commit(d)
				for key, resource := range pending[i] {
					if delete(in, key); resource != nil {
						in[key] = *resource
					}
				}
				begin(i)
			}
		}
		for _, d := range drafts {
			d.Discard()
		}
		if r == nil {
			continue
		}
		fresh := NewSet()
		d := fresh.Draft()
		d.network = &r.network
		for key, resource := range in {
			if err := d.Put(key, resource); err != nil {
				t.Fatalf("sequence %d: what was accepted is refused: %v", sequence, err)
			}
		}
		want, _ := fresh.Commit(d)
		if len(s.pieces) != len(in) || s.rules != fresh.rules || r.notracks != want.notracks ||
			!maps.Equal(s.claims, fresh.claims) {
			t.Fatalf("sequence %d: %d pieces, %d rules, %d notrack, %v, want %d, %d, %d, %v",
				sequence, len(s.pieces), s.rules, r.notracks, s.claims, len(in), fresh.rules, want.notracks,
				fresh.claims)
		}
		for range packets {
			v, mark := m.view(), uint32(m.IntN(4))
			if got, want := decided(r, v, mark), decided(want, v, mark); got != want {
				t.Fatalf("sequence %d, %+v:\n%s\nwant\n%s", sequence, v, got, want)
			}
		}
	}
}

// What a change does not concern is shared and not affected.
func TestSetChangesLittle(t *testing.T) {
	s := NewSet()
	c := sized(1000)
	before, err := s.make(c)
	need.NoError(t, err)
	d, err := s.Replace(c)
	if err != nil || len(d.changes) != 0 {
		t.Fatalf("the same configuration changes %d resources, %v", len(d.changes), err)
	}
	key := Key{Kind: "mapping", Name: mapped(500).String()}
	moved := AddressMapping{External: mapped(500), Internal: addr("198.51.100.9")}
	need.NoError(t, d.put(key, c.mapping(moved, c.devices())))
	after, affected := s.Commit(d)
	for a, want := range map[netip.Addr]bool{
		mapped(500): true, addr("192.1.1.244"): true, addr("198.51.100.9"): true,
		mapped(501): false, pod(500): false, addr("192.1.1.245"): false,
	} {
		if got := affected.Prefixes.Contains(a); got != want {
			t.Errorf("%v affected: %v", a, got)
		}
	}
	if affected.All || len(affected.Links) > 0 || len(affected.Marks) > 0 {
		t.Errorf("affected: all %v, ports %v, marks %v", affected.All, affected.Links, affected.Marks)
	}
	for st := range stages {
		if st != stageDNAT && st != stageSNAT && before.stages[st].ruleIndex != after.stages[st].ruleIndex {
			t.Errorf("stage %d is not shared", st)
		}
	}
	v := from(Tunnel, "10.1.2.6", mapped(500).String())
	if was, is := before.bind(stageDNAT, &v).addr, after.bind(stageDNAT, &v).addr; was != addr("192.1.1.244") ||
		is != addr("198.51.100.9") {
		t.Errorf("mapped to %v before and %v after", was, is)
	}
}

// A refusal belongs to its key: the others are put, and the key keeps what it had.
func TestSetRefusesByKey(t *testing.T) {
	s := NewSet()
	d := s.Draft()
	good := Resource{Tables: []Table{oneChain(FamilyIPv4, ChainFilter, HookForward, 0, Rule{Action: ActionDrop})}}
	bad := Resource{Tables: []Table{oneChain(FamilyIPv4, ChainFilter, HookForward, 0, Rule{Action: "explode"})}}
	device := Resource{Device: &Device{Link: 1, Name: "rome-1", Address: PairOf(addr("10.80.0.2"))}}
	service := Resource{Service: &Service{Address: addr("10.70.0.20"), Port: 80, Protocol: packet.TCP}}
	for _, step := range []struct {
		name string
		r    Resource
		want string
	}{
		{"a", good, ""}, {"a", bad, `unknown action "explode"`},
		{"b", device, ""}, {"c", device, `device "rome-1" is taken by kind/b`},
		{"d", service, ""}, {"e", service, "10.70.0.20 port 80 is taken by kind/d"},
		{"c", Resource{Device: &Device{Link: 2, Name: "rome-2", Address: PairOf(addr("10.80.0.2"))}},
			"address 10.80.0.2 is taken by kind/b"},
	} {
		err := d.Put(Key{Kind: "kind", Name: step.name}, step.r)
		if got := fmt.Sprint(errors.Unwrap(err), err); step.want == "" && err != nil ||
			!strings.Contains(got, step.want) {
			t.Errorf("%s: error %v, want %q", step.name, err, step.want)
		}
	}
	r, _ := s.Commit(d)
	var e Effects
	if len(s.pieces) != 3 || r.filter(stageForward, packetView(), &e) != ruleDrop {
		t.Errorf("%d resources are left, verdict %v", len(s.pieces), r.filter(stageForward, packetView(), &e))
	}
	if _, ok := s.claims["rome-2"]; ok {
		t.Error("the device of a refused resource is known")
	}
}

// Nodes may exchange their addresses, and services theirs, in one change. Services with several
// ports have one name.
func TestExchange(t *testing.T) {
	c := milan()
	c.Services = append(c.Services,
		Service{Name: "dns", Address: addr("10.70.0.21"), Port: 80, Protocol: packet.TCP},
		Service{Name: "dns", Address: addr("10.70.0.21"), Port: 81, Protocol: packet.TCP})
	s := NewSet()
	if _, err := s.make(c); err != nil {
		t.Fatal(err)
	}
	c.Nodes[0].Address, c.Nodes[1].Address = c.Nodes[1].Address, c.Nodes[0].Address
	c.Services[0].Address, c.Services[1].Address = c.Services[1].Address, c.Services[0].Address
	r, err := s.make(c)
	need.NoError(t, err)
	for port, want := range map[uint16]string{80: "10.70.0.20", 81: "10.70.0.21"} {
		s, ok := r.services.get(serviceAddress{addr(want), port, packet.TCP})
		if !ok || s.Service.Name != "dns" {
			t.Errorf("port %d of %s is not the service's", port, want)
		}
	}
}
