package probe

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"sync/atomic"
	"time"

	"golang.org/x/net/icmp"
	"golang.org/x/net/ipv4"
	"golang.org/x/net/ipv6"
	"golang.org/x/sys/unix"

	"culvert/integration/lab/netns"
	"culvert/integration/lab/step"
	"culvert/nat/nattest"
)

// ReplyTimeout is how long an answer may take; within one machine it takes less than a millisecond.
const ReplyTimeout = 2 * time.Second

// MaxTTL is more hops than any path in a lab.
const MaxTTL = 64

// Pinger sends ICMP echo requests from a host and reads all incoming ICMP of the family of the
// host's address.
type Pinger struct {
	conn *icmp.PacketConn
	six  bool
	id   int
	seq  int
}

// pingID makes unique identifiers.
var pingID atomic.Int32

// NewPinger opens a raw ICMP socket, which also receives errors with their quotations.
func NewPinger(h *netns.Host) (*Pinger, error) {
	p := &Pinger{six: h.Address.Is6(), id: 0x4000 | int(pingID.Add(1)&0x3fff)}
	network, all := "ip4:icmp", "0.0.0.0"
	if p.six {
		network, all = "ip6:ipv6-icmp", "::"
	}
	err := h.Do(func() (err error) {
		p.conn, err = icmp.ListenPacket(network, all)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("%s: raw ICMP socket: %w", h.Name, err)
	}
	return p, nil
}

// Close closes its socket.
func (p *Pinger) Close() { p.conn.Close() }

// Answer is an ICMP message as it arrived.
type Answer struct {
	From    netip.Addr
	Message *icmp.Message
	Quote   *nattest.View // of an ICMP error, or nil
	mtu     int           // of a fragmentation-needed message
	rtt     time.Duration
}

// ErrUnanswered means that a request had no answer in time.
var ErrUnanswered = errors.New("no answer")

// Echo sends one request with an IP packet of size bytes and waits for its answer: a reply, or an
// error that quotes it.
func (p *Pinger) Echo(to netip.Addr, size, ttl int) (*Answer, error) {
	p.seq++
	data := make([]byte, max(0, size-udpOverhead(to))) // ICMP and UDP headers have the same length
	for i := range data {
		data[i] = byte(i + p.seq)
	}
	request := icmp.Message{Type: p.Types().echo, Body: &icmp.Echo{ID: p.id, Seq: p.seq & 0xffff, Data: data}}
	packet, err := request.Marshal(nil)
	if err != nil {
		return nil, err
	}
	if p.six {
		err = p.conn.IPv6PacketConn().SetHopLimit(ttl)
	} else {
		err = p.conn.IPv4PacketConn().SetTTL(ttl)
	}
	if err != nil {
		return nil, err
	}
	began := time.Now()
	if _, err := p.conn.WriteTo(packet, &net.IPAddr{IP: to.AsSlice()}); err != nil {
		return nil, fmt.Errorf("send echo request to %s: %w", to, err)
	}
	for {
		a, err := p.Read(began.Add(ReplyTimeout))
		if errors.Is(err, os.ErrDeadlineExceeded) {
			return nil, fmt.Errorf("%w to an echo request of %d bytes to %s in %v", ErrUnanswered, size, to,
				ReplyTimeout)
		}
		if err != nil {
			return nil, err
		}
		a.rtt = time.Since(began)
		switch body := a.Message.Body.(type) {
		case *icmp.Echo:
			if a.Message.Type != p.Types().reply || body.ID != p.id || body.Seq != p.seq&0xffff {
				continue
			}
			if a.From != to {
				return nil, fmt.Errorf("echo reply came from %s, want %s", a.From, to)
			}
			if !slices.Equal(body.Data, data) {
				return nil, fmt.Errorf("echo reply from %s has %d bytes unlike the %d sent", to,
					len(body.Data), len(data))
			}
			return a, nil
		default:
			// the identifier
			if a.Quote != nil && int(a.Quote.Protocol) == p.Types().protocol && int(a.Quote.SourcePort) == p.id {
				return a, nil
			}
		}
	}
}

// Read returns the next ICMP message.
func (p *Pinger) Read(deadline time.Time) (_ *Answer, err error) {
	defer step.Catch(&err)
	step.Try(p.conn.SetReadDeadline(deadline))
	buffer := make([]byte, 65536)
	n, from := step.Must2(p.conn.ReadFrom(buffer))
	message, err := icmp.ParseMessage(p.Types().protocol, buffer[:n])
	if err != nil {
		return nil, fmt.Errorf("ICMP message from %s: %w", from, err)
	}
	source, _ := netip.AddrFromSlice(from.(*net.IPAddr).IP)
	quote, mtu := p.quoted(message, buffer[:n])
	return &Answer{From: source.Unmap(), Message: message, Quote: quote, mtu: mtu}, nil
}

// Types are the messages of a family that the checks know.
type Types struct {
	protocol                               int
	echo, reply, TimeExceeded, Unreachable icmp.Type
}

// Types are those of the pinger's family.
func (p *Pinger) Types() *Types {
	if p.six {
		return &Types{unix.IPPROTO_ICMPV6, ipv6.ICMPTypeEchoRequest, ipv6.ICMPTypeEchoReply,
			ipv6.ICMPTypeTimeExceeded, ipv6.ICMPTypeDestinationUnreachable}
	}
	return &Types{unix.IPPROTO_ICMP, ipv4.ICMPTypeEcho, ipv4.ICMPTypeEchoReply, ipv4.ICMPTypeTimeExceeded,
		ipv4.ICMPTypeDestinationUnreachable}
}

// quoted returns the packet that an ICMP error quotes, or nil if the message is no error, and the
// MTU of a fragmentation-needed message.
func (p *Pinger) quoted(m *icmp.Message, raw []byte) (quote *nattest.View, mtu int) {
	var data []byte
	switch body := m.Body.(type) {
	case *icmp.PacketTooBig:
		data, mtu = body.Data, body.MTU
	case *icmp.DstUnreach:
		data = body.Data
		const fragmentationNeeded = 4
		if !p.six && m.Code == fragmentationNeeded {
			mtu = int(binary.BigEndian.Uint16(raw[6:])) // RFC 1191, Section 4
		}
	case *icmp.TimeExceeded:
		data = body.Data
	}
	v, err := nattest.Open(data)
	if err != nil {
		return nil, 0
	}
	return &v, mtu
}

// watchEchoes collects the source addresses of n echo requests with this ID that arrive at a host;
// wait returns them, or those that arrived in time.
func watchEchoes(h *netns.Host, id, n int) (wait func() ([]netip.Addr, error), err error) {
	w, err := NewPinger(h)
	if err != nil {
		return nil, err
	}
	var seen []netip.Addr
	done := make(chan error, 1)
	go func() {
		for len(seen) < n {
			a, err := w.Read(time.Time{})
			if errors.Is(err, net.ErrClosed) {
				break
			}
			if err != nil {
				done <- err
				return
			}
			if e, ok := a.Message.Body.(*icmp.Echo); ok && a.Message.Type == w.Types().echo && e.ID == id {
				seen = append(seen, a.From)
			}
		}
		done <- nil
	}()
	return func() ([]netip.Addr, error) {
		late := time.AfterFunc(ReplyTimeout, w.Close)
		err := <-done
		late.Stop()
		w.Close()
		return seen, err
	}, nil
}

// percentiles formats the median and 99th percentile of round-trip times.
func percentiles(rtts []time.Duration) string {
	slices.Sort(rtts)
	at := func(p int) float64 { return float64(rtts[(len(rtts)-1)*p/100].Microseconds()) / 1000 }
	return fmt.Sprintf("p50 %.2f ms, p99 %.2f ms", at(50), at(99))
}
