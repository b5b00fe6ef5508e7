package probe

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/net/dns/dnsmessage"

	"culvert/integration/need"
)

const token = "0123456789abcdef"

// serve starts a server on loopback until the test ends.
func serve(t *testing.T, host string) (address string) {
	t.Helper()
	tcp, udp := listen(t, host)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- Serve(ctx, tcp, udp, token, "server-1") }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	return tcp.Addr().String()
}

// listen returns listeners at a port that is free for both protocols. The kernel chooses one that
// is free for TCP, which a UDP socket may have.
func listen(t *testing.T, host string) (tcp net.Listener, udp net.PacketConn) {
	t.Helper()
	loopback(t)
	for {
		tcp, err := net.Listen("tcp", net.JoinHostPort(host, "0"))
		need.NoError(t, err)
		udp, err := net.ListenPacket("udp", tcp.Addr().String())
		if err == nil {
			return tcp, udp
		}
		tcp.Close()
		if !errors.Is(err, syscall.EADDRINUSE) {
			t.Fatal(err)
		}
	}
}

// TestAsk: what an asker finds if everything works, in either family.
func TestAsk(t *testing.T) {
	for _, host := range hosts {
		t.Run(host, func(t *testing.T) { testAsk(t, host) })
	}
}

func testAsk(t *testing.T, host string) {
	address := serve(t, host)
	task := &Task{Token: token, Patience: 5, Targets: []Target{{"a", address, 1340, 3 << 20, ""},
		{Name: "b", Address: address}}}
	all := Ask(t.Context(), task)
	a := all[0]
	if a.Name != "a" || a.Error != "" || a.Seen != host || a.Server != "server-1" || a.RTT <= 0 {
		t.Errorf("first answer: %+v", a)
	}
	if a.UDP == nil || *a.UDP != (UDP{datagrams, datagrams}) {
		t.Errorf("datagrams: %+v", a.UDP)
	}
	if a.Size == nil || a.Size.Largest != 1340 || a.Size.Above != Passed || a.Size.Own < 1340 { // loopback carries more
		t.Errorf("size: %+v", a.Size)
	}
	if a.Bulk == nil || a.Bulk.Error != "" || a.Bulk.Bytes != 3<<20 || a.Bulk.Took <= 0 {
		t.Errorf("bulk: %+v", a.Bulk)
	}
	if b := all[1]; b.Error != "" || b.UDP != nil || b.Size != nil || b.Bulk != nil {
		t.Errorf("first answer alone: %+v", b)
	}
}

// TestAskNobody: a server or a name that does not exist is reported in few words.
func TestAskNobody(t *testing.T) {
	loopback(t)
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	need.NoError(t, err)
	address := l.Addr().String()
	l.Close()
	all := Ask(t.Context(), &Task{Token: token, Targets: []Target{{"a", address, 1340, 1, ""},
		{Name: "b", Address: "no-such-name.invalid:1"}}})
	if got := all[0]; got.Error != "connection refused" || got.UDP != nil || got.Bulk != nil {
		t.Errorf("nobody listens: %+v", got)
	}
	if got := all[1]; got.Error == "" {
		t.Errorf("no such name: %+v", got)
	}
}

// TestAskNames: of a name the addresses are found, or what keeps the cluster's DNS from finding it.
func TestAskNames(t *testing.T) {
	const zone, name = "clusterset.local", "web.shop.svc.clusterset.local"
	for what, c := range map[string]struct {
		dns, served bool // the cluster's names are found; the zone has a version
		code        dnsmessage.RCode
		addresses   []string
		seen, fails string
	}{
		"found":     {true, true, dnsmessage.RCodeSuccess, []string{"10.96.0.9", "10.96.0.7"}, "10.96.0.7,10.96.0.9", ""},
		"no name":   {true, true, dnsmessage.RCodeNameError, nil, "", "the cluster's DNS finds no " + name},
		"no kind":   {true, true, dnsmessage.RCodeServerFailure, nil, "", Failing},
		"no zone":   {true, false, dnsmessage.RCodeNameError, nil, "", NoZone},
		"forwarded": {true, false, dnsmessage.RCodeServerFailure, nil, "", NoZone},
		"no DNS":    {false, false, dnsmessage.RCodeRefused, nil, "", NoDNS},
	} {
		loopback(t)
		conn, err := net.ListenPacket("udp4", "127.0.0.1:0")
		need.NoError(t, err)
		go answerDNS(conn, func(q dnsmessage.Question, b *dnsmessage.Builder) dnsmessage.RCode {
			header := dnsmessage.ResourceHeader{Name: q.Name, Type: q.Type, Class: q.Class}
			address := func(text string) {
				if q.Type == dnsmessage.TypeA {
					b.AResource(header, dnsmessage.AResource{A: netip.MustParseAddr(text).As4()})
				}
			}
			switch asked := q.Name.String(); {
			case strings.HasPrefix(asked, "kubernetes.default.svc.") && c.dns:
				address("10.96.0.1")
			case asked == "dns-version."+zone+"." && c.served:
				b.TXTResource(header, dnsmessage.TXTResource{TXT: []string{"1.1.0"}})
			case asked == name+".":
				for _, a := range c.addresses {
					address(a)
				}
				return c.code
			default:
				return dnsmessage.RCodeNameError
			}
			return dnsmessage.RCodeSuccess
		})
		own := net.DefaultResolver
		dial := func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "udp4", conn.LocalAddr().String())
		}
		net.DefaultResolver = &net.Resolver{PreferGo: true, Dial: dial}
		got := Ask(t.Context(), &Task{Token: token, Targets: []Target{{Name: "a", Address: name, Zone: zone}}})[0]
		net.DefaultResolver = own
		conn.Close()
		if got.Seen != c.seen || got.Error != c.fails || (got.RTT > 0) != (c.fails == "") {
			t.Errorf("%s: %+v, want %q, %q", what, got, c.seen, c.fails)
		}
	}
}

// answerDNS answers questions until the socket is closed.
func answerDNS(conn net.PacketConn, answer func(dnsmessage.Question, *dnsmessage.Builder) dnsmessage.RCode) {
	buffer := make([]byte, 1500)
	for {
		n, from, err := conn.ReadFrom(buffer)
		if err != nil {
			return
		}
		var p dnsmessage.Parser
		header, err := p.Start(buffer[:n])
		if err != nil {
			continue
		}
		q, err := p.Question()
		if err != nil {
			continue
		}
		// the code is in the header, which comes first
		code := answer(q, &dnsmessage.Builder{})
		b := dnsmessage.NewBuilder(nil, dnsmessage.Header{ID: header.ID, Response: true, Authoritative: true,
			RCode: code, RecursionDesired: header.RecursionDesired, RecursionAvailable: true})
		b.StartQuestions()
		b.Question(q)
		b.StartAnswers()
		answer(q, &b)
		if text, err := b.Finish(); err == nil {
			conn.WriteTo(text, from)
		}
	}
}

// TestServeWithoutToken: requests without the token are not answered, and neither are answers.
func TestServeWithoutToken(t *testing.T) {
	address := serve(t, "127.0.0.1")
	conn, err := net.Dial("tcp4", address)
	need.NoError(t, err)
	defer conn.Close()
	io.WriteString(conn, "GET / HTTP/1.1\r\nHost: a\r\n\r\n")
	if text, _ := io.ReadAll(conn); len(text) > 0 {
		t.Errorf("a request without the token is answered by %q", text)
	}
	udp, err := net.Dial("udp4", address)
	need.NoError(t, err)
	defer udp.Close()
	task := &Task{Token: token}
	answer := task.datagram(1, 100)
	answer[tokenBytes] = '!'
	other := (&Task{Token: strings.ToUpper(token)}).datagram(2, 100)
	for _, b := range [][]byte{answer, other, {}, []byte(token), task.datagram(3, 100)} {
		if _, err := udp.Write(b); err != nil {
			t.Fatal(err)
		}
	}
	udp.SetReadDeadline(time.Now().Add(5 * time.Second))
	b := make([]byte, 200)
	if n, err := udp.Read(b); err != nil || b[tokenBytes+4] != 3 || n != 100 {
		t.Errorf("the first answer is % x (%v), want that to datagram 3", b[:n], err)
	}
}

// wire is a path with a largest packet, which reports packets that are too big, or drops them
// silently.
type wire struct {
	carries int
	silent  bool
	loses   int // the first packets
	asked   int
}

func (w *wire) try(size int) Above {
	w.asked++
	switch {
	case w.asked <= w.loses:
		return Vanished
	case size <= w.carries:
		return Passed
	case w.silent:
		return Vanished
	}
	return Refused
}

func (w *wire) told() int { return w.carries }

func TestFind(t *testing.T) {
	for _, tt := range []struct {
		carries int
		silent  bool
		loses   int
		own     int
		want    Size
		asked   int
	}{
		{1340, false, 0, 1500, Size{1500, 1340, 1340, Refused}, 2},
		{1340, true, 0, 1500, Size{1500, 1340, 0, Vanished}, 2},
		{1400, false, 0, 1500, Size{1500, 1340, 0, Passed}, 2},
		{1280, false, 0, 1280, Size{1280, 1280, 1280, Refused}, 2}, // the pod's own interface
		{1212, false, 0, 1500, Size{1500, 1212, 1212, Refused}, 3}, // the network says so
		{1212, true, 0, 1500, Size{1500, 1212, 0, Vanished}, 13},   // a hole
		{0, true, 0, 1500, Size{1500, 0, 0, ""}, 12},               // nothing passes
		{1340, false, 0, 0, Size{0, 1340, 1340, Refused}, 2},       // nobody knows the interface
		{68, true, 0, 1500, Size{1500, 68, 0, Vanished}, 13},       // the least
		{9000, false, 0, 9000, Size{9000, 1340, 0, Passed}, 2},     // more than asked for
		{1340, true, 1, 1500, Size{1500, 1340, 0, Vanished}, 15},   // the largest is lost by chance
		{1340, true, 99, 1500, Size{1500, 0, 0, ""}, 12},
	} {
		w, s := &wire{carries: tt.carries, silent: tt.silent, loses: tt.loses}, &Size{Own: tt.own}
		find(w, s, 1340)
		if *s != tt.want || w.asked > tt.asked {
			t.Errorf("%+v: %+v after %d packets, want %+v after at most %d", tt, *s, w.asked, tt.want, tt.asked)
		}
	}
}

func TestMain(m *testing.M) { need.TestsInNamespace(m) }

// TestSizer: a packet that does not fit into the asker's interface is refused in either family, not
// fragmented, and the largest that fits passes.
func TestSizer(t *testing.T) {
	need.Namespace(t)
	const most = 1400
	lo := loopback(t)
	need.NoError(t, netlink.LinkSetMTU(lo, most))
	t.Cleanup(func() { netlink.LinkSetMTU(lo, lo.Attrs().MTU) })
	for _, host := range hosts {
		s := (&Task{Token: token}).size(t.Context(), serve(t, host), most)
		if *s != (Size{Own: most, Largest: most, Told: most, Above: Refused}) {
			t.Errorf("%s: %+v, want %d, and what is larger refused", host, *s, most)
		}
	}
}

// loopback returns the interface lo, which is down in a new namespace.
func loopback(t *testing.T) netlink.Link {
	t.Helper()
	lo, err := netlink.LinkByName("lo")
	need.NoError(t, err)
	if lo.Attrs().Flags&net.FlagUp == 0 {
		need.NoError(t, netlink.LinkSetUp(lo))
	}
	return lo
}

// hosts are this machine in either family.
var hosts = []string{"127.0.0.1", "::1"}

// FuzzGreeting: whatever a server says first, there is a verdict.
func FuzzGreeting(f *testing.F) {
	f.Add("10.0.0.1 server-1\n")
	f.Add("\n")
	f.Add("HTTP/1.1 400 Bad Request\r\n")
	f.Fuzz(func(t *testing.T, text string) {
		seen, server, err := readGreeting(newReader(text))
		if err == nil && (seen == "" || server == "" || !strings.Contains(text, fmt.Sprint(seen))) {
			t.Errorf("%q: %q %q", text, seen, server)
		}
	})
}

func newReader(text string) *bufio.Reader { return bufio.NewReader(strings.NewReader(text)) }
