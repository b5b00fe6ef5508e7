package integration

import (
	"bytes"
	"encoding/hex"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"sort"
	"strings"
	"testing"
	"time"

	"culvert/integration/lab/netns"
	"culvert/integration/need"
	"culvert/nat"
	"culvert/nat/nattest"
	"culvert/nat/packet"
	"culvert/nat/rules"
)

var (
	oracleSeed    = flag.Uint64("oracle.seed", 0, "seed of the kernel oracle; 0: from the clock")
	oracleRound   = flag.Uint64("oracle.round", 0, "first round, to replay the last one of a seed")
	oraclePackets = flag.Int("oracle.packets", 100000, "packets that the kernel oracle compares")
)

// Differences between the kernel and the engine that are intended. Each compared packet is equal,
// or counts under one of these.
var oracleDifferences = map[nat.Reason]string{
	nat.ReasonBadSource:      "the kernel, with rp_filter 0, checks no sources",
	nat.ReasonBadDestination: "nor destinations",
	nat.ReasonICMPUnrelated:  "the kernel forwards an ICMP error about no connection as it is",
}

// TestNATAgainstKernel sends generated packets through nftables and through nat.Engine, with
// generated rules, and compares the results byte for byte. Not compared are the outer source of
// translated ICMP errors with its checksum, the identification of IPv6 fragments, messages of the
// kernel itself, and the differences listed above.
func TestNATAgainstKernel(t *testing.T) {
	compareWithKernel(t, *oraclePackets, (*maker).random)
}

// TestGeneratedRulesAgainstKernel does the same with the tables that are generated for
// configurations without tables.
func TestGeneratedRulesAgainstKernel(t *testing.T) {
	compareWithKernel(t, *oraclePackets/4, (*maker).generated)
}

// TestLiqoRulesAgainstKernel does the same with tables that Liqo's controllers made, in three
// versions and settings.
func TestLiqoRulesAgainstKernel(t *testing.T) {
	needKernel(t)
	configs := capturedConfigs(t)
	next := 0
	compareWithKernel(t, *oraclePackets/4, func(m *maker) *nat.Config {
		next++
		return m.liqo(configs[next%len(configs)])
	})
}

// needKernel skips the test where there is no kernel to compare with.
func needKernel(t *testing.T) {
	t.Helper()
	for _, probe := range []string{"root", "tun", "nft"} {
		need.Kernel(t, probe, netns.Probe(probe))
	}
	need.Programs(t, "nft", "nft")
}

func compareWithKernel(t *testing.T, packets int, config func(*maker) *nat.Config) {
	t.Parallel()
	needKernel(t)
	seed := *oracleSeed
	if seed == 0 {
		seed = uint64(time.Now().UnixNano())
	}
	if testing.Short() {
		packets /= 20
	}
	if os.Getenv("CULVERT_LONG") != "" {
		packets *= 7 // 1,050 rule sets with IPv6, and 525,000 packets by them
	}
	t.Logf("replay with -oracle.seed=%d", seed)
	c := &comparison{t: t, counts: map[string]int{}, limit: packetsPerRound}
	for n := *oracleRound; c.packets < packets; n++ {
		m := &maker{Rand: rand.New(rand.NewPCG(seed, n))}
		m.families = pick(m, onlyIPv4, onlyIPv6, dualStack, dualStack)
		c.round(m, config(m))
		c.counts[fmt.Sprintf("rule sets for %v", m.families)]++
		if t.Failed() {
			t.Fatalf("-oracle.round=%d of seed %d, after %d packets", n, seed, c.packets)
		}
	}
	c.report()
}

// report logs the counts, and fails if too little was compared.
func (c *comparison) report() {
	var lines []string
	different := 0
	for what, n := range c.counts {
		lines = append(lines, fmt.Sprintf("%8d %s", n, what))
		if strings.HasPrefix(what, "difference: ") && !strings.Contains(what, "odd offset") {
			different += n
		}
	}
	sort.Sort(sort.Reverse(sort.StringSlice(lines)))
	c.t.Logf("%d packets, %d rule sets:\n%s", c.packets, c.rounds, strings.Join(lines, "\n"))
	if c.packets < 20000 {
		return // a few rule sets may drop almost everything
	}
	if 50*different > c.packets {
		c.t.Errorf("%d of %d packets differ, if for a known reason", different, c.packets)
	}
	if forwarded := c.counts["equal"]; 2*forwarded < c.packets {
		c.t.Errorf("only %d of %d packets were forwarded: the rules leave too little to compare", forwarded, c.packets)
	}
}

// ownMessages is the name under which messages of the kernel itself are counted.
const ownMessages = "the kernel's own messages"

type comparison struct {
	t               *testing.T
	packets, rounds int
	counts          map[string]int
	now             nat.Time
	tables          []rules.Table
	routing         []rules.PolicyTable
	limit           int // packets of a round
	// record, if not nil, gets each packet whose results are equal to the last byte.
	record func(now nat.Time, in nat.Link, b []byte, sent []output)
}

const (
	packetsPerRound = 500
	flowsAtOnce     = 12
)

// round compares limit packets under the rules of config.
func (c *comparison) round(m *maker, config *nat.Config) {
	c.rounds++
	c.tables, c.routing = config.Tables(), config.PolicyTables()
	checked := *config
	checked.SourceCheck = nat.SourceCheckCluster // like a kernel without a reverse path filter
	engine, err := nat.New([16]byte{1}, &checked)
	if err != nil {
		c.t.Fatalf("engine: %v", err)
	}
	kernel, err := newOracle(c.t, config)
	if err != nil {
		c.t.Fatalf("oracle: %v", err)
	}
	defer kernel.close()
	var flows []*flow
	number := 0
	for id := uint16(1); int(id) <= c.limit && !c.t.Failed(); {
		for len(flows) < flowsAtOnce {
			flows = append(flows, m.newFlow(number))
			number++
		}
		at := m.IntN(len(flows))
		f := flows[at]
		in, parts := m.next(f, id)
		if parts == nil {
			flows = slices.Delete(flows, at, at+1)
			continue
		}
		c.packets++
		c.one(engine, kernel, f, in, parts)
		id++
	}
}

// A compared is one packet, which may come in fragments, and what both sides make of it.
type compared struct {
	*flow
	in        nat.Link
	parts     [][]byte
	first     []byte // of parts
	verdict   nat.Verdict
	want, got []output // of the engine and of the kernel
}

// one compares the results for one packet.
func (c *comparison) one(engine *nat.Engine, kernel *oracle, f *flow, in nat.Link, parts [][]byte) {
	c.now = c.now.Add(time.Millisecond)
	own := c.counts[ownMessages]
	x := &compared{flow: f, in: in, parts: parts}
	x.verdict, x.want = c.process(engine, in, parts)
	got, err := kernel.inject(in, parts)
	need.NoError(c.t, err)
	x.first = slices.MinFunc(parts, func(x, y []byte) int { return offset(x) - offset(y) })
	x.got = c.wait(kernel, x.first, got, len(x.want), settle)
	v, _ := nattest.Check(x.first)
	f.told = f.told || isError(v)
	if isError(v) && (len(x.got) != len(x.want) || len(x.want) > 0 && x.got[0].link != x.want[0].link) {
		c.counts["difference: the engine filters and routes an ICMP error as its connection, the kernel by its own addresses"]++
		return
	}
	if x.verdict.Action != nat.Forward && len(x.got) > 0 {
		c.forwarded(x)
		return
	}
	if why := c.kernelDrops(x); why != "" {
		c.counts["difference: "+why]++
		f.script = nil
		return
	}
	if len(x.got) < len(x.want) {
		x.got = append(x.got, c.wait(kernel, x.first, nil, len(x.want)-len(x.got), 100*settle)...)
	}
	f.told = f.told || c.counts[ownMessages] > own
	if why := c.marks(x); why != "" {
		c.counts["difference: "+why]++
		f.script = nil
		return
	}
	if len(x.want) == 0 && len(x.got) == 0 {
		c.counts["both drop: "+x.verdict.Reason.String()]++
		if c.record != nil {
			c.record(c.now, in, x.first, nil)
		}
	} else if c.equal(x) {
		c.count(x, isError(v))
		f.learn(in, x.want[0].link, x.want[0].bytes)
	}
}

func (c *comparison) describe(x *compared) string {
	return fmt.Sprintf("packet at port %d:\n%s%v\nnft:\n%s\nrouting:\n%s", x.in, dump(x.first), viewOf(x.first),
		nftText(c.tables), routingText(c.routing))
}

// forwarded judges a packet that the kernel alone forwards.
func (c *comparison) forwarded(x *compared) {
	if why, ok := oracleDifferences[x.verdict.Reason]; ok {
		c.counts["difference: "+x.verdict.Reason.String()+": "+why]++
		return
	}
	c.t.Errorf("the engine says %v %v, the kernel sends at link %d:\n%s%v\n%s", x.verdict.Action, x.verdict.Reason,
		x.got[0].link, dump(x.got[0].bytes), viewOf(x.got[0].bytes), c.describe(x))
}

// kernelDrops returns why the kernel may drop what the engine forwards, or "".
func (c *comparison) kernelDrops(x *compared) string {
	switch {
	case len(x.got) == 0 && x.moved(c.tables, x.verdict.Out):
		return "the kernel ends a masqueraded connection whose route moves to another device"
	case len(x.got) == 0 && len(x.want) > 0 && x.protocol == protoOther && !x.ends[1].open:
		return "no ports to tell two connections apart; the engine tells nodes and the tunnel apart"
	}
	return ""
}

// marks returns why marks of connections may lead packets elsewhere, or "".
func (c *comparison) marks(x *compared) string {
	elsewhere := len(x.got) != len(x.want) || slices.ContainsFunc(x.want, func(o output) bool {
		return o.link != x.got[0].link
	})
	switch marks := have(c.tables, rules.ActionCTMark); {
	case marks && elsewhere && len(x.parts) > 1:
		return "a mark that a first fragment gives its connection leads the later ones; the kernel routes them together"
	case marks && elsewhere && x.told:
		return "rules that an ICMP error or a message of the kernel meets mark the connection that it is about"
	}
	return ""
}

// equal reports an error unless both sides send the same.
func (c *comparison) equal(x *compared) bool {
	if len(x.got) != len(x.want) {
		c.t.Errorf("the engine sends %d packets, the kernel %d\n%s", len(x.want), len(x.got), c.describe(x))
		for _, o := range x.want {
			c.t.Logf("engine at link %d: %v", o.link, viewOf(o.bytes))
		}
		return false
	}
	for _, fragments := range [][]output{x.got, x.want} {
		slices.SortStableFunc(fragments, func(x, y output) int { return offset(x.bytes) - offset(y.bytes) })
	}
	for i, want := range x.want {
		got := x.got[i]
		if oddMSS(want.bytes) && got.link == want.link && equalButTCPChecksum(got.bytes, want.bytes) {
			c.counts["difference: the kernel's checksum is wrong for an MSS option at an odd offset"]++
			continue
		}
		if got.link != want.link || !equalPackets(got.bytes, want.bytes) {
			c.t.Errorf("packet %d: the engine sends at link %d\n%s%v\nthe kernel at link %d\n%s%v\n%s", i, want.link,
				dump(want.bytes), viewOf(want.bytes), got.link, dump(got.bytes), viewOf(got.bytes), c.describe(x))
			return false
		}
	}
	return true
}

// count counts and records a packet of which both sides send the same.
func (c *comparison) count(x *compared, isError bool) {
	c.counts["equal"]++
	if c.record != nil && slices.EqualFunc(x.got, x.want, func(x, y output) bool {
		return bytes.Equal(x.bytes, y.bytes)
	}) {
		c.record(c.now, x.in, x.first, x.got)
	}
	if isError {
		c.counts["  of them ICMP errors"]++
	}
	if len(x.parts) > 1 {
		c.counts["  of them in fragments"]++
	} else if len(x.want) > 1 {
		c.counts["  of them fragmented"]++
	}
	b, sent := x.first, x.want[0].bytes
	if !bytes.Equal(b[12:20], sent[12:20]) && b[0]>>4 == 4 || b[0]>>4 == 6 && !bytes.Equal(b[8:40], sent[8:40]) {
		c.counts["  of them translated"]++
	}
	if b[0]>>4 == 6 {
		c.counts["  of them IPv6"]++
	}
}

// process passes a packet through the engine. The verdict is that of the first fragment, or of one
// that differs for a known reason.
func (c *comparison) process(engine *nat.Engine, in nat.Link, parts [][]byte) (verdict nat.Verdict, sent []output) {
	var p packet.Packet
	take := func(v nat.Verdict) {
		if _, known := oracleDifferences[verdict.Reason]; !known && (p.FragmentOffset() == 0 ||
			oracleDifferences[v.Reason] != "") {
			verdict = v
		}
		if v.Action != nat.Forward {
			return
		}
		var cutter packet.Cutter
		cutter.Start(&p, v.SegmentSize, v.MTU)
		buf := make([]byte, 4096)
		for n := cutter.Next(buf); n > 0; n = cutter.Next(buf) {
			sent = append(sent, output{v.Out, slices.Clone(buf[:n])})
		}
	}
	for _, b := range parts {
		if r := p.Parse(slices.Clone(b)); r != packet.NoFault {
			c.t.Fatalf("parse: %v\n%s%s", r, dump(b), viewOf(b))
		}
		v := engine.Process(&p, in, c.now)
		take(v)
		for range v.Held {
			held, _ := engine.Release(&p, make([]byte, 2048), in, c.now)
			take(held)
		}
	}
	if verdict.Action != nat.Forward {
		return verdict, nil
	}
	return verdict, sent
}

// offset returns the position of a fragment in its datagram.
func offset(b []byte) int {
	v, _ := nattest.Check(b)
	return v.Offset
}

// wait returns the kernel's output for the injected packet. It waits for as many packets as the
// engine has sent.
func (c *comparison) wait(kernel *oracle, b []byte, sent []output, want int, limit time.Duration) []output {
	var got []output
	for deadline := time.Now().Add(limit); ; {
		for _, o := range sent {
			switch {
			case kernelMade(o.bytes):
				c.counts[ownMessages]++
			case idOf(o.bytes) == idOf(b):
				got = append(got, o)
			default:
				c.t.Errorf("a packet of another time from the kernel at link %d:\n%s", o.link, dump(o.bytes))
			}
		}
		if len(got) >= want || time.Now().After(deadline) {
			return got
		}
		var err error
		if sent, err = kernel.drain(); err != nil {
			c.t.Fatal(err)
		}
	}
}

// kernelMade reports whether the kernel itself made a packet. ICMP errors have the precedence
// "internetwork control", which no generated packet has; over IPv6 the kernel's packets have no
// flow label.
func kernelMade(b []byte) bool {
	if b[0]>>4 == 4 {
		return b[1]&0xfc == 0xc0
	}
	return idOf(b) == 0
}

// equalPackets compares all bytes except the outer source of ICMP errors, and the identification of
// IPv6 fragments: the kernel reassembles a datagram and cuts it again, with another one.
func equalPackets(got, want []byte) bool {
	if len(got) != len(want) {
		return false
	}
	if want[0]>>4 == 6 && want[6] == 44 {
		got, want = slices.Clone(got), slices.Clone(want)
		clear(got[44:48])
		clear(want[44:48])
	}
	v, err := nattest.Check(want)
	if err != nil || v.Offset > 0 || v.MF || len(v.Body) == 0 || !isError(v) {
		return bytes.Equal(got, want)
	}
	if _, err := nattest.Check(got); err != nil {
		return false
	}
	got, want = slices.Clone(got), slices.Clone(want)
	for _, b := range [][]byte{got, want} {
		if b[0]>>4 == 4 {
			clear(b[10:16]) // header checksum and source
		} else {
			clear(b[8:24])
			clear(b[42:44]) // the ICMPv6 checksum covers the source, and was checked before
		}
	}
	return bytes.Equal(got, want)
}

// oddMSS reports whether a segment has an MSS option at an odd offset. The kernel (6.18,
// nft_exthdr) then updates the checksum as if the offset were even.
func oddMSS(b []byte) bool {
	v, err := nattest.Check(b)
	return err == nil && v.Protocol == protoTCP && len(v.Options) > 1 && v.Options[0] == 1 && v.Options[1] == 2
}

func equalButTCPChecksum(got, want []byte) bool {
	if len(got) != len(want) {
		return false
	}
	v, err := nattest.Check(want)
	if err != nil {
		return false
	}
	got, at := slices.Clone(got), len(v.Header)+16
	copy(got[at:at+2], want[at:at+2])
	return bytes.Equal(got, want)
}

func viewOf(b []byte) string {
	v, err := nattest.Check(b)
	return fmt.Sprintf("%v:%d → %v:%d protocol %d TTL %d flags %#x, %d bytes, check: %v", v.Source, v.SourcePort,
		v.Destination, v.DestinationPort,
		v.Protocol, v.TTL, v.Flags, len(b), err)
}

// routingText writes policy tables in the format of ip-rule(8) and ip-route(8).
func routingText(tables []rules.PolicyTable) string {
	var b strings.Builder
	for _, t := range tables {
		for _, r := range t.Rules {
			fmt.Fprintf(&b, "rule priority %d to %v from %v iif %q oif %q fwmark %d table %s\n", r.Priority,
				r.Destination, r.Source, r.In, r.Out, r.Mark, t.Name)
			for _, route := range r.Routes {
				fmt.Fprintf(&b, "\troute %v dev %s\n", route.Destination, route.Device)
			}
		}
	}
	return b.String()
}

// dump shows the headers of a packet.
func dump(b []byte) string { return hex.Dump(b[:min(len(b), 96)]) }
