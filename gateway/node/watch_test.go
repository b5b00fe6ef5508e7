package node

import (
	"bytes"
	"errors"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sirupsen/logrus"
	"github.com/sirupsen/logrus/hooks/test"

	"culvert/geneve"
	"culvert/integration/need"
)

// TestSight: what is logged after each round of probes. A round is two letters, for any answer and
// for one of a packet of mtu bytes: y, n, or - for unknown.
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
		var s observer
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

// TestEchoes: requests are whole and correct, and only the gateway's answers count.
func TestEchoes(t *testing.T) {
	t.Run("IPv4", func(t *testing.T) { testEchoes(t, "10.80.0.2", "10.80.0.4", 20) })
	t.Run("IPv6", func(t *testing.T) { testEchoes(t, "fd80::2", "fd80::4", 40) })
}

func testEchoes(t *testing.T, own, gateway string, header int) {
	both := ends{netip.MustParseAddr(own), netip.MustParseAddr(gateway)}
	c := &Config{Address: geneve.Pair{V6: both.own}, GatewayAddress: geneve.Pair{V6: both.gateway}}
	if header == 20 {
		c = &Config{Address: geneve.Pair{V4: both.own}, GatewayAddress: geneve.Pair{V4: both.gateway}}
	}
	e, other := newEchoes(c), newEchoes(c)
	if e.last(smallEcho) != untold || e.last(wholeEcho) != untold {
		t.Error("told before anything was asked")
	}
	e.next()
	other.next()
	whole := e.request(1341) // an odd length
	late := reply(e.request(e.least()))
	fromAnother := reply(whole)
	fromAnother[header-len(both.own.AsSlice())-1]++
	for name, b := range map[string][]byte{
		"request": whole, "of another node": reply(other.request(1341)), "from another": fromAnother,
		"cut short": reply(whole)[:e.least()-1],
		"empty":     nil, "with options, or of another version": append([]byte{whole[0] + 1<<(header/20*4-4)},
			reply(whole)[1:]...),
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

// reply turns an echo request into its answer, without updating the checksum.
func reply(request []byte) []byte {
	b := bytes.Clone(request)
	at, size, kind := 12, 4, byte(0)
	if b[0]>>4 == 6 {
		at, size, kind = 8, 16, 129
	}
	copy(b[at:], request[at+size:at+2*size])
	copy(b[at+size:], request[at:at+size])
	b[at+2*size] = kind
	return b
}

// sees runs a node and returns a function that waits for a log line.
func sees(t *testing.T, c *Config) (says func(what, why, remedy string)) {
	t.Helper()
	log, said := test.NewNullLogger()
	n, err := New(t.Context(), c, log)
	need.NoError(t, err)
	// An answer that comes after the next request counts as none, and three of these cause another
	// line.
	n.pace = pace{look: 200 * time.Millisecond, settled: 200 * time.Millisecond, cause: 50 * time.Millisecond}
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
		need.Eventually(t, 30*time.Second, what, func() error {
			for entries := said.AllEntries(); seen < len(entries); {
				e := entries[seen]
				seen++
				if !strings.HasPrefix(e.Message, "the gateway ") {
					continue
				}
				cause, _ := e.Data["error"].(string)
				got, _ := e.Data["remedy"].(string)
				if e.Message != what || cause != why || !strings.Contains(got, remedy) ||
					(e.Level == logrus.InfoLevel) != (remedy == "") {
					t.Fatalf("%v: %s, %q, remedy %q; want %s, %q, %q", e.Level, e.Message, cause, got,
						what, why, remedy)
				}
				return nil
			}
			return errors.New("says nothing")
		})
	}
}

// echoServer answers echo requests to an endpoint, up to a size.
func echoServer(e *geneve.Endpoint, size *atomic.Int64) {
	receiver, sender := e.NewReceiver(), e.NewSender()
	for receiver.Fill() == nil {
		for p, ok := receiver.Next(); ok; p, ok = receiver.Next() {
			echo4 := p.Data[0] == 0x45 && p.Data[9] == 1 && p.Data[20] == 8
			echo6 := p.Data[0] == 0x60 && p.Data[6] == 58 && p.Data[40] == 128
			if (echo4 || echo6) && len(p.Data) <= int(size.Load()) {
				sender.Send(7, reply(p.Data))
			}
		}
		sender.Flush()
	}
}

// TestTUNSees: the node says that the gateway answers, or why it does not, as far as it can tell.
func TestTUNSees(t *testing.T) {
	needTUN(t)
	c := testConfig(t, TUN)
	says := sees(t, c)
	const lost = "the gateway does not answer"
	says(lost, "nobody is at 172.18.0.9", "correct gateway.underlay")
	const closed = "UDP port 6091 is closed at 172.18.0.9"
	underlay := gatewayUnderlay(t, "172.18.0.9")
	says(lost, closed, "start culvert gateway there")
	e := listenAt(t, c, underlay)
	says(lost, "nothing comes back from 172.18.0.9:6091",
		"gatewayAddress 10.80.0.4, and for this node vni 1, underlay 172.18.0.2, address 10.80.0.2, encap auto or geneve")
	var size atomic.Int64
	size.Store(1000)
	go echoServer(e, &size)
	says("the gateway answers, but packets of mtu bytes do not come back", "", "let the way to it carry 1390 bytes")
	size.Store(2000)
	says("the gateway answers", "", "")
	e.Close()
	says(lost, closed, "start culvert gateway there")
}

// TestTUNSeesIPv6: without IPv4, the gateway is probed over IPv6.
func TestTUNSeesIPv6(t *testing.T) {
	needTUN(t)
	c := testConfigOf(t, TUN, v6only.Replace(goodFile))
	e := gatewayEnd(t, c, "172.18.0.9")
	var size atomic.Int64
	size.Store(1000)
	go echoServer(e, &size)
	says := sees(t, c)
	says("the gateway answers, but packets of mtu bytes do not come back", "", "let the way to it carry 1390 bytes")
	size.Store(2000)
	says("the gateway answers", "", "")
}
