package node

import (
	"bytes"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sirupsen/logrus"
	"github.com/sirupsen/logrus/hooks/test"

	"culvert/geneve"
)

// TestSight: what is said after each look. A look is two letters, for anything and for a
// packet of mtu bytes: y, n, or - for not told.
func TestSight(t *testing.T) {
	letters := map[byte]answer{'-': untold, 'n': no, 'y': yes}
	for _, tt := range []struct{ name, looks, said string }{
		{"at once", "yy yy yy", "answers - -"},
		{"after two misses", "-- nn nn yy", "- - - answers"},
		{"never", "-- nn nn nn nn", "- - - silent -"},
		{"too early to say", "-- -- -- -- yy", "- - - - answers"},
		{"small ones only", "-- yn yn yn yn yy", "- - - short - answers"},
		{"lost, and back", "yy nn nn nn -- yy", "answers - - silent - answers"},
		{"misses between answers", "yy nn nn yy nn nn yy", "answers - - - - - -"},
		{"large ones lost later", "yy yn yn yn", "answers - - short"},
		{"small ones only after silence", "nn nn nn yn yn", "- - silent short -"},
		{"a gateway that begins to answer", "yn nn nn nn yn yy", "- - - silent short answers"},
	} {
		names := map[verdict]string{answers: "answers", short: "short", silent: "silent"}
		var s sight
		var said []string
		for look := range strings.FieldsSeq(tt.looks) {
			if s.take(letters[look[0]], letters[look[1]]) {
				said = append(said, names[s.verdict])
			} else {
				said = append(said, "-")
			}
		}
		if got := strings.Join(said, " "); got != tt.said {
			t.Errorf("%s: said %q, want %q", tt.name, got, tt.said)
		}
	}
}

// TestEchoes: requests are whole and right, and nobody else's answer counts.
func TestEchoes(t *testing.T) {
	c := &Config{Address: netip.MustParseAddr("10.80.0.2"), GatewayAddress: netip.MustParseAddr("10.80.0.4")}
	e, other := newEchoes(c), newEchoes(c)
	if e.last(smallEcho) != untold || e.last(wholeEcho) != untold {
		t.Error("told before anything was asked")
	}
	e.next()
	other.next()
	reply := func(request []byte) []byte {
		b := bytes.Clone(request)
		copy(b[12:16], request[16:20])
		copy(b[16:20], request[12:16])
		b[20] = echoReply
		return b
	}
	whole := e.request(1341) // odd
	if sum(whole[:20]) != 0 || sum(whole[20:]) != 0 || len(whole) != 1341 {
		t.Errorf("checksums wrong in % x", whole[:echoLen])
	}
	late := reply(e.request(echoLen))
	fromAnother := reply(whole)
	fromAnother[15]++
	for name, b := range map[string][]byte{
		"request": whole, "of another node": reply(other.request(1341)), "from another": fromAnother, "cut short": reply(whole)[:echoLen-1],
		"empty": nil, "with options": append([]byte{0x46}, reply(whole)[1:]...),
	} {
		if e.answeredIn(b) {
			t.Errorf("%s is taken for an answer", name)
		}
	}
	if !e.answeredIn(reply(whole)) || e.last(wholeEcho) != yes || e.last(smallEcho) != no {
		t.Error("an answer does not count")
	}
	e.next()
	if !e.answeredIn(late) || e.last(smallEcho) != no || e.last(wholeEcho) != no {
		t.Error("a late answer counts")
	}
	for range 1<<16 + 1 {
		e.next()
	}
	if e.sequence == 0 {
		t.Error("a round without a number")
	}
}

// sees runs a node and returns what waits until it says something.
func sees(t *testing.T, c *Config) (says func(what, why, remedy string)) {
	t.Helper()
	log, said := test.NewNullLogger()
	n, err := New(t.Context(), c, log)
	if err != nil {
		t.Fatal(err)
	}
	n.pace = pace{look: 50 * time.Millisecond, settled: 50 * time.Millisecond, cause: 50 * time.Millisecond}
	stop := run(t, n)
	t.Cleanup(func() {
		if err := stop(); err != nil {
			t.Error("Run returned", err)
		}
		requireNothingLeft(t, c)
	})
	seen := 0
	return func(what, why, remedy string) {
		t.Helper()
		deadline := time.Now().Add(30 * time.Second)
		for ; time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) { // polling for what the node does by itself
			for entries := said.AllEntries(); seen < len(entries); {
				e := entries[seen]
				seen++
				if !strings.HasPrefix(e.Message, "the gateway ") {
					continue
				}
				cause, _ := e.Data["error"].(string)
				got, _ := e.Data["remedy"].(string)
				if e.Message != what || cause != why || !strings.Contains(got, remedy) || (e.Level == logrus.InfoLevel) != (remedy == "") {
					t.Fatalf("%v: %s, %q, remedy %q; want %s, %q, %q", e.Level, e.Message, cause, got, what, why, remedy)
				}
				return
			}
		}
		t.Fatalf("says nothing; want %s", what)
	}
}

// echoServer answers the echo requests that come to an endpoint, up to a size.
func echoServer(e *geneve.Endpoint, size *atomic.Int64) {
	receiver, sender := e.NewReceiver(), e.NewSender()
	for receiver.Fill() == nil {
		for p, ok := receiver.Next(); ok; p, ok = receiver.Next() {
			if len(p.Data) > int(size.Load()) || p.Data[0] != 0x45 || p.Data[9] != 1 || p.Data[20] != echoRequest {
				continue
			}
			back := bytes.Clone(p.Data)
			copy(back[12:16], p.Data[16:20])
			copy(back[16:20], p.Data[12:16])
			back[20] = echoReply
			sender.Send(7, back)
		}
		sender.Flush()
	}
}

// TestTUNSees: the node says why no gateway answers, as far as it can be told apart, and
// that one does.
func TestTUNSees(t *testing.T) {
	needTUN(t)
	c := testConfig(t, TUN)
	says := sees(t, c)
	const lost = "the gateway does not answer"
	says(lost, "nobody is at 172.18.0.9", "mend gateway.underlay")
	const closed = "UDP port 6091 is closed at 172.18.0.9"
	underlay := gatewayUnderlay(t, "172.18.0.9")
	says(lost, closed, "start culvert gateway there")
	e := listenAt(t, c, underlay)
	says(lost, "nothing comes back from 172.18.0.9:6091", "gatewayAddress 10.80.0.4, and for this node vni 1, underlay 172.18.0.2, address 10.80.0.2, encap auto or geneve")
	var size atomic.Int64
	size.Store(1000)
	go echoServer(e, &size)
	says("the gateway answers, but packets of mtu bytes do not come back", "", "let the way to it carry 1390 bytes")
	size.Store(2000)
	says("the gateway answers", "", "")
	e.Close()
	says(lost, closed, "start culvert gateway there")
}
