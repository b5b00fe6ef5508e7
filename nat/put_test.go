package nat

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"culvert/integration/need"
	"culvert/nat/rules"
)

var firewallX = rules.Key{Kind: "FirewallConfiguration", Namespace: "liqo", Name: "x"}

// dropping drops what matches.
func dropping(match ...rules.Match) rules.Resource {
	return rules.Resource{Tables: []rules.Table{{Name: "t", Family: rules.FamilyIPv4, Chains: []rules.Chain{{
		Name: "c", Type: rules.ChainFilter, Hook: rules.HookForward,
		Rules: []rules.Rule{{Name: "drop", Match: match, Action: rules.ActionDrop}},
	}}}}}
}

func in(device string) rules.Match {
	return rules.Match{Dev: rules.Operand{Value: device, Position: rules.PositionIn}}
}

// Only CommitRules publishes what was put, and neither a Config nor the rules generated from it
// interfere.
func TestPutBesideConfig(t *testing.T) {
	c := milan()
	e, err := New([16]byte{}, c)
	need.NoError(t, err)
	port := uint16(0)
	expect := func(when string, want Reason) {
		t.Helper()
		port++
		if v, _ := send(e, 4, addr("10.200.3.9"), addr("10.71.1.4"), port, 80); v.Reason != want {
			t.Fatalf("%s: %v, want %v", when, v.Reason, want)
		}
	}
	put := func(k rules.Key, r rules.Resource) {
		t.Helper()
		need.NoError(t, e.Put(k, r))
	}
	apply := func() {
		t.Helper()
		c.Addresses[1].Internal = c.Addresses[1].Internal.Next()
		need.NoError(t, e.Apply(c))
	}
	put(firewallX, dropping(in("milan-1")))
	expect("put", ReasonNone)
	apply()
	expect("a configuration has come", ReasonNone)
	e.CommitRules()
	expect("committed", ReasonFiltered)
	apply()
	expect("another configuration", ReasonFiltered)
	e.Delete(firewallX)
	expect("deleted", ReasonFiltered)
	c.MTU = 1400
	other := *c
	other.Nodes = append(other.Nodes[:2:2], rules.Node{Link: 50, Name: "z", Address: rules.PairOf(addr("10.80.0.50"))})
	if _, err := e.Prepare(&other); err != nil {
		t.Fatal(err)
	}
	device := rules.Resource{Device: &rules.Device{Link: 50, Name: "z"}}
	if err := e.Put(rules.Key{Kind: "Node", Name: "z"}, device); err == nil {
		t.Fatal("what is prepared has its device taken")
	}
	p, err := e.Prepare(c)
	need.NoError(t, err)
	put(rules.Key{Kind: "Node", Name: "z"}, device) // the prepared configuration no longer has it
	e.CommitRules()
	expect("the deletion committed", ReasonNone)
	put(firewallX, dropping(in("milan-1")))
	e.Commit(p)
	if e.snapshot.mtu != 1400 || e.snapshot.generation != 6 {
		t.Errorf("MTU %d, generation %d", e.snapshot.mtu, e.snapshot.generation)
	}
	expect("prepared and committed", ReasonNone)
	e.CommitRules()
	expect("put once more", ReasonFiltered)
	generation := e.snapshot.generation
	put(firewallX, dropping(in("milan-1")))
	e.CommitRules()
	if e.snapshot.generation != generation {
		t.Error("what was put as it was makes a generation")
	}
}

// The error names the field and the fault, and the key keeps its earlier resource. A refused
// resource takes nothing from others.
func TestPutRefuses(t *testing.T) {
	e, err := New([16]byte{}, milan())
	need.NoError(t, err)
	for _, tt := range []struct {
		key  rules.Key
		r    rules.Resource
		want string
	}{
		{firewallX, dropping(in("milan-1")), ""},
		{firewallX, dropping(rules.Match{IP: rules.Operand{Value: "10.0.0.300", Position: rules.PositionSource}}),
			`ip "10.0.0.300" is no address`},
		{rules.Key{Kind: "node", Name: "x"}, dropping(), "use another kind"},
		{rules.Key{Kind: "Node", Name: "a"}, rules.Resource{Device: &rules.Device{Link: 9, Name: "a"}},
			"device number 9 is taken by node/milan-2"},
		{rules.Key{Kind: "Node", Name: "a"}, rules.Resource{Device: &rules.Device{Link: 50, Name: "milan-1"}},
			`device "milan-1" is taken by node/milan-1`},
		{rules.Key{Kind: "Node", Name: "a"}, rules.Resource{Device: &rules.Device{Link: 50, Name: "liqo-tunnel"}},
			`taken by network/tunnel`},
		{rules.Key{Kind: "Node", Name: "a"}, rules.Resource{Device: &rules.Device{Link: 50, Name: "a",
			Address: rules.PairOf(addr("10.80.0.3"))}}, `10.80.0.3 is taken by node/milan-2`},
		{rules.Key{Kind: "Node", Name: "a"}, rules.Resource{Device: &rules.Device{Link: 50}},
			"Device.Name: a device needs a name"},
		{rules.Key{Kind: "Node", Name: "a"}, rules.Resource{Device: &rules.Device{Name: "a"}},
			"Device.Link: 0 is reserved"},
		{rules.Key{Kind: "Node", Name: "a"}, rules.Resource{Device: &rules.Device{Link: 50, Name: "a",
			Address: rules.PairOf(addr("::ffff:1.2.3.4"))}}, "Device.Address"},
		{rules.Key{Kind: "Service", Name: "a"}, rules.Resource{Service: &rules.Service{}}, "Service.Address"},
		{rules.Key{Kind: "Service", Name: "a"}, rules.Resource{Service: &milan().Services[0]},
			"taken by service/web 10.70.0.20:80/6"},
		{rules.Key{Kind: "Node", Name: "a"}, rules.Resource{Device: &rules.Device{Link: 50, Name: "a",
			Address: rules.PairOf(addr("10.80.0.50"))}}, ""},
	} {
		err := e.Put(tt.key, tt.r)
		if got := fmt.Sprint(err); tt.want == "" && err != nil || !strings.Contains(got, tt.want) {
			t.Errorf("%s: %v, want %q", tt.key, err, tt.want)
		}
	}
	// A Config cannot take what a resource already has, nor does it know a resource by its own
	// keys.
	e.CommitRules()
	c := milan()
	c.Nodes = append(c.Nodes, rules.Node{Link: 51, Name: "a", Address: rules.PairOf(addr("10.80.0.51"))})
	if err := e.Apply(c); err == nil || !strings.Contains(err.Error(), `device "a" is taken by Node/a`) {
		t.Error(err)
	}
	e.Delete(rules.Key{Kind: "node", Name: "milan-1"})
	e.Delete(rules.Key{Kind: "Node", Name: "nobody"})
	e.CommitRules()
	if v, _ := send(e, 4, addr("10.200.3.9"), addr("10.71.1.4"), 1, 2); v.Reason != ReasonFiltered {
		t.Errorf("%v: the key has not what it had", v.Reason)
	}
}

// Rules and routes may name a device before it exists. Connections from it live as long as it does.
func TestDevicesComeAndGo(t *testing.T) {
	e, err := New([16]byte{}, &Config{MTU: 1340, Config: rules.Config{Firewall: []rules.Table{},
		Routing: []rules.PolicyTable{}}})
	need.NoError(t, err)
	put := func(name string, r rules.Resource) {
		t.Helper()
		need.NoError(t, e.Put(rules.Key{Kind: "kind", Name: name}, r))
		e.CommitRules()
	}
	try := func(when string, source string, want Reason, out Link) {
		t.Helper()
		v, _ := send(e, 50, addr(source), addr("198.51.100.7"), 1, 2)
		if v.Reason != want || v.Out != out {
			t.Fatalf("%s: %v at %d, want %v at %d", when, v.Reason, v.Out, want, out)
		}
	}
	try("nothing is there", "10.1.0.1", ReasonNoRoute, 0)
	put("rule", dropping(in("n50"), ip("10.1.0.2", rules.PositionSource)))
	put("route", rules.Resource{Routing: []rules.PolicyTable{{Name: "r", Rules: []rules.PolicyRule{
		{In: "n50", Priority: 1, Routes: []rules.PolicyRoute{{Destination: pfx("198.51.100.0/24"),
			Via: addr("10.80.0.60")}}}}}}})
	try("no device", "10.1.0.1", ReasonNoRoute, 0)
	put("n50", rules.Resource{Device: &rules.Device{Link: 50, Name: "n50"}})
	try("the neighbour is missing", "10.1.0.1", ReasonNoRoute, 0)
	put("n60", rules.Resource{Device: &rules.Device{Link: 60, Name: "n60", Address: rules.PairOf(addr("10.80.0.60"))}})
	try("all there", "10.1.0.1", ReasonNone, 60)
	try("the rule's", "10.1.0.2", ReasonFiltered, 0)
	put("n60", rules.Resource{Device: &rules.Device{Link: 61, Name: "n60", Address: rules.PairOf(addr("10.80.0.60"))}})
	try("the neighbour has moved", "10.1.0.1", ReasonNone, 61)
	put("all", dropping(ip("10.1.0.3", rules.PositionSource)))
	if st := e.Stats(); st.Connections != 1 || st.Evicted != 0 {
		t.Errorf("%d connections, %d evicted", st.Connections, st.Evicted)
	}
	e.Delete(rules.Key{Kind: "kind", Name: "n50"})
	e.CommitRules()
	for !e.Sweep(1) {
	}
	if st := e.Stats(); st.Connections != 0 || st.Evicted != 1 {
		t.Errorf("the device is gone: %d connections, %d evicted", st.Connections, st.Evicted)
	}
}

// An answer may come through another node than its connection's. A rule about that node's device
// applies all the same.
func TestRuleConcernsAsymmetricAnswer(t *testing.T) {
	c := milan()
	c.SourceCheck = SourceCheckCluster
	e, err := New([16]byte{}, c)
	need.NoError(t, err)
	pod, remote, seen := addr("10.200.3.9"), addr("10.200.9.9"), addr("10.71.9.9")
	if v, _ := send(e, Tunnel, remote, pod, 1, 2); v.Out != 4 || v.Action != Forward {
		t.Fatalf("%+v", v)
	}
	answer := func(when string, from Link, want Reason) {
		t.Helper()
		if v, _ := send(e, from, pod, seen, 2, 1); v.Reason != want || want == ReasonNone &&
			v.Asymmetric != (from == 9) {
			t.Errorf("%s: an answer by %d: %+v, want %v", when, from, v, want)
		}
	}
	for range 2 {
		answer("no rule", 9, ReasonNone)
	}
	need.NoError(t, e.Put(firewallX, dropping(in("liqo.milan2"))))
	e.CommitRules()
	answer("a rule", 9, ReasonFiltered)
	answer("a rule", 4, ReasonNone)
	answer("a rule", 9, ReasonFiltered)
	answer("a rule", 4, ReasonNone)
	if st := e.Stats(); st.Created != 1 || st.Evicted != 0 {
		t.Errorf("%d made, %d evicted", st.Created, st.Evicted)
	}
}

// A gateway can start with nothing: no packet passes, and no address is assigned.
func TestConfigOfNothing(t *testing.T) {
	nothing := Config{MTU: 1340}
	hairpin := Config{MTU: 1340, Config: rules.Config{
		Nodes: milan().Nodes, LocalExternalCIDRs: milan().LocalExternalCIDRs, Addresses: milan().Addresses[:1],
		Remote: []rules.RemoteCIDR{{Real: pfx("10.71.0.0/16")}},
	}}
	for _, tt := range []struct {
		c        Config
		in       Link
		from, to string
		want     Reason
		source   string
	}{
		{nothing, Tunnel, "10.200.1.1", "10.200.3.9", ReasonBadSource, "10.200.1.1"},
		{nothing, 4, "10.200.3.9", "10.71.1.4", ReasonNoRoute, "10.200.3.9"},
		{hairpin, 4, "10.200.3.9", "10.70.0.9", ReasonNone, "10.200.3.9"},
		{hairpin, 4, "10.70.0.9", "10.71.1.4", ReasonNone, "10.70.0.9"},
		{hairpin, 4, "10.200.3.9", "10.71.1.4", ReasonUnknownSource, "10.200.3.9"},
	} {
		e, err := New([16]byte{}, &tt.c)
		need.NoError(t, err)
		v, b := send(e, tt.in, addr(tt.from), addr(tt.to), 1, 2)
		if source := netip.AddrFrom4([4]byte(b[12:])).String(); v.Reason != tt.want || source != tt.source {
			t.Errorf("%s to %s: %v from %s, want %v from %s", tt.from, tt.to, v.Reason, source, tt.want, tt.source)
		}
	}
}
