package lab

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/ipv4"

	"culvert/nat/nattest"
)

// TestTallies: a request lost is a failure, and so is one repeated that the kernel has not
// lost.
func TestTallies(t *testing.T) {
	innocents := []*innocent{{what: "pings"}, {what: "scrapes"}}
	for _, test := range []struct {
		name    string
		tallies []tally
		kernel  int
		want    string // figure
		err     string
	}{
		{"all answered", []tally{{asked: 10}, {asked: 5}}, 0, "9 at 1 k/s; 10 pings; 5 scrapes", ""},
		{"the kernel lost some", []tally{{asked: 10, again: 2}, {asked: 5}}, 2,
			"9 at 1 k/s; 10 pings; 5 scrapes; 2 lost by the kernel", ""},
		{"somebody else did", []tally{{asked: 10, again: 3}, {asked: 5}}, 2, "",
			"3 of 10 pings lost, of which the kernel lost no more than 2"},
		{"the kernel lost some, and some were late", []tally{{asked: 10, again: 3, late: 1}, {asked: 5}}, 2,
			"9 at 1 k/s; 10 pings; 5 scrapes; 2 lost by the kernel", ""},
		{"never answered", []tally{{asked: 10}, {asked: 5, again: 2, lost: 1}}, 100, "",
			"1 of 5 scrapes lost, 3 attempts each"},
	} {
		figure, err := judgeTallies([]string{"9 at 1 k/s"}, innocents, test.tallies, test.kernel)
		if test.err == "" && (err != nil || figure != test.want) {
			t.Errorf("%s: %q, %v; want %q", test.name, figure, err, test.want)
		}
		if test.err != "" && (err == nil || !strings.Contains(err.Error(), test.err)) {
			t.Errorf("%s: %v, want %q", test.name, err, test.err)
		}
	}
}

// TestInnocentGivesUp: one that is answered at the second attempt counts once, one that
// never is counts as lost.
func TestInnocentGivesUp(t *testing.T) {
	failure := errors.New("no answer")
	answers := []error{failure, nil, nil, failure, failure, failure}
	in := &innocent{ask: func(context.Context) (err error) {
		err, answers = answers[0], answers[1:]
		return err
	}}
	var got tally
	for range 3 {
		in.once(t.Context(), &got)
	}
	if want := (tally{asked: 3, again: 3, lost: 1, err: failure}); got != want || len(answers) != 0 {
		t.Errorf("%+v, want %+v; %d answers left", got, want, len(answers))
	}
}

// TestLateAnswers: an answer that comes after its time is late, and one that never comes or is
// another one is not.
func TestLateAnswers(t *testing.T) {
	q := &questioner{timeout: time.Millisecond}
	var answer []func()
	for _, tt := range []struct{ now, later string }{{"question from pipe", ""}, {"", "question from pipe"}, {"", ""},
		{"", "another"}} {
		near, far := net.Pipe()
		if answered := make(chan error); tt.now != "" {
			q.timeout = time.Minute
			go func() { answered <- q.ask(near) }()
			io.ReadFull(far, make([]byte, len(tt.now)))
			far.Write([]byte(tt.now))
			if err := <-answered; err != nil {
				t.Error(err)
			}
			q.timeout = time.Millisecond
			continue
		}
		go io.ReadFull(far, make([]byte, len("question from pipe")))
		if err := q.ask(near); !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("no answer: %v", err)
		}
		answer = append(answer, func() { far.Write([]byte(tt.later)) })
	}
	q.timeout = time.Minute
	for _, write := range answer {
		go write()
	}
	if n := q.late(); n != 1 || len(q.unanswered) > 0 {
		t.Errorf("%d late, want 1; %d are kept", n, len(q.unanswered))
	}
}

// TestForgedPackets: what attackers send is what it claims to be.
func TestForgedPackets(t *testing.T) {
	from, to := netip.MustParseAddrPort("10.0.1.5:4000"), netip.MustParseAddrPort("10.61.1.5:4001")
	router := netip.MustParseAddr("10.0.130.7")
	udp, tcp := silentUDP(from, to), silentTCP(from, to, nattest.SYN, 1, 0)
	error68 := tooBigAbout(router, udp, 68)
	for _, test := range []struct {
		name     string
		packet   []byte
		from, to netip.Addr
		protocol int
		length   int
		offset   int
		more     bool
	}{
		{"datagram", udp, from.Addr(), to.Addr(), 17, 29, 0, false},
		{"segment", tcp, from.Addr(), to.Addr(), 6, 40, 0, false},
		{"too big", error68, router, from.Addr(), 1, 56, 0, false},
		{"later fragment", laterFragment(from.Addr(), to.Addr(), 7), from.Addr(), to.Addr(), 17, 84,
			fragmentBytes / 8, true},
		{"first fragment", firstFragment(from, to, 7), from.Addr(), to.Addr(), 17, 92, 0, true},
	} {
		h, err := ipv4.ParseHeader(test.packet)
		if err != nil {
			t.Fatalf("%s: %v", test.name, err)
		}
		if h.Src.String() != test.from.String() || h.Dst.String() != test.to.String() || h.Protocol != test.protocol ||
			h.TotalLen != test.length || h.FragOff != test.offset || h.Flags&ipv4.MoreFragments != 0 != test.more {
			t.Errorf("%s: %v", test.name, h)
		}
		if payload := len(test.packet) - h.Len; test.more && payload%8 != 0 {
			t.Errorf("%s: %d bytes before the next", test.name, payload)
		}
	}
	if _, err := nattest.Check(error68); err != nil {
		t.Errorf("ICMP error: %v", err)
	}
	if mtu := binary.BigEndian.Uint16(error68[26:]); mtu != 68 {
		t.Errorf("MTU %d in the ICMP error", mtu)
	}
}

// TestForgedPacketsIPv6: over IPv6 they are what they claim to be too, with checksums where IPv6
// has no packets without.
func TestForgedPacketsIPv6(t *testing.T) {
	from, to := netip.MustParseAddrPort("[fd00:10:0:1::5]:4000"), netip.MustParseAddrPort("[fd00:61:0:1::5]:4001")
	router := netip.MustParseAddr("fd00:10:0:8002::7")
	for _, tt := range []struct {
		name     string
		packet   []byte
		source   netip.Addr
		protocol uint8
		length   int
	}{
		{"datagram", datagramOf(from, to, 1, 2, 3).Bytes(), from.Addr(), 17, 51},
		{"too big", tooBigAbout(router, silentTCP(from, to, nattest.ACK, 1, 1), 1280), router, 58, 96},
	} {
		v, err := nattest.Check(tt.packet)
		if err != nil || v.Source != tt.source || v.Protocol != tt.protocol || len(tt.packet) != tt.length {
			t.Errorf("%s: %d bytes, %+v, %v", tt.name, len(tt.packet), v, err)
		}
	}
	for name, b := range map[string][]byte{"later": laterFragment(from.Addr(), to.Addr(), 7),
		"first": firstFragment(from, to, 7)} {
		offset := binary.BigEndian.Uint16(b[42:])
		if b[6] != 44 || b[40] != 17 || offset&1 != 1 || (name == "later") != (offset&^7 == fragmentBytes) ||
			(len(b)-48)%8 != 0 || int(binary.BigEndian.Uint16(b[4:])) != len(b)-40 {
			t.Errorf("%s fragment: % x", name, b[:48])
		}
	}
}
