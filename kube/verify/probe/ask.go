package probe

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"slices"
	"strings"
	"syscall"
	"time"
)

const (
	// for one try: longer than until the first repetition of a SYN (RFC 6298, Section 2.1)
	dialTimeout   = 2 * time.Second
	pause         = 200 * time.Millisecond
	datagrams     = 20
	datagramBytes = 512
	datagramGap   = 10 * time.Millisecond
	datagramWait  = time.Second     // for the last answer
	stall         = 5 * time.Second // maximum time without a byte of the bulk transfer
	bulkTime      = 30 * time.Second
	// for a name: a resolver waits 5 s for a server, and tries twice (resolv.conf(5))
	resolveTime = 10 * time.Second
)

// Ask does a Task, one target after the other. It first makes the small tests, so that concurrent
// askers do not disturb each other's measurements, and then those that fill the path.
func Ask(ctx context.Context, t *Task) []Answer {
	all := make([]Answer, len(t.Targets))
	for i := range t.Targets {
		all[i] = t.meet(ctx, &t.Targets[i])
	}
	for i := range t.Targets {
		if to, a := &t.Targets[i], &all[i]; a.Error == "" && to.MTU > 0 {
			a.UDP, a.Size = t.datagrams(ctx, to.Address), t.size(ctx, to.Address, to.MTU)
		}
	}
	for i := range t.Targets {
		if to, a := &t.Targets[i], &all[i]; a.Error == "" && to.Bytes > 0 {
			a.Bulk = t.bulk(ctx, to.Address, to.Bytes)
		}
	}
	return all
}

// meet asks a target until it answers for the first time.
func (t *Task) meet(ctx context.Context, to *Target) Answer {
	a := Answer{Name: to.Name}
	until := time.Now().Add(time.Duration(t.Patience) * time.Second)
	for {
		var err error
		var c *connection
		if to.Zone != "" {
			began := time.Now()
			var found []string
			if found, err = net.DefaultResolver.LookupHost(ctx, to.Address+"."); err == nil {
				slices.Sort(found)
				a.Error, a.Seen, a.RTT = "", strings.Join(found, ","), time.Since(began)
				return a
			}
		} else if c, err = t.dial(ctx, to.Address); err == nil {
			c.Close()
			a.Error, a.Seen, a.Server, a.RTT = "", c.seen, c.server, c.took
			return a
		}
		a.Error = short(err)
		if unknown := new(net.DNSError); errors.As(err, &unknown) {
			a.Error = unfound(ctx, to.Zone, unknown)
		}
		select {
		case <-ctx.Done():
			return a
		case <-time.After(pause):
		}
		if time.Now().After(until) {
			return a
		}
	}
}

// A connection leads to a server that has sent its greeting.
type connection struct {
	*net.TCPConn
	r            *bufio.Reader
	seen, server string
	took         time.Duration // the TCP handshake
}

// dial connects and reads the greeting.
func (t *Task) dial(ctx context.Context, address string) (*connection, error) {
	began := time.Now()
	conn, err := (&net.Dialer{Timeout: dialTimeout}).DialContext(ctx, "tcp", address)
	if err != nil {
		return nil, err
	}
	c := &connection{TCPConn: conn.(*net.TCPConn), r: bufio.NewReader(conn), took: time.Since(began)}
	c.SetDeadline(time.Now().Add(dialTimeout))
	if _, err = io.WriteString(c, t.Token+"\n"); err == nil {
		c.seen, c.server, err = readGreeting(c.r)
	}
	if err != nil {
		c.Close()
		return nil, err
	}
	return c, nil
}

// unfound says why a name was not found. zone is that of the name, if it is one of multi-cluster
// Services: it has a record of its version (KEP-1645, DNS specification, 2.2), and CoreDNS without
// access to ServiceImports fails where there is no name.
func unfound(ctx context.Context, zone string, why *net.DNSError) string {
	if !hasDNS(ctx) {
		return NoDNS
	}
	if zone != "" {
		if _, err := net.DefaultResolver.LookupTXT(ctx, "dns-version."+zone+"."); err != nil {
			return NoZone
		}
		if !why.IsNotFound && !why.IsTimeout {
			return Failing
		}
	}
	return "the cluster's DNS finds no " + strings.TrimSuffix(why.Name, ".")
}

// hasDNS reports whether pods can resolve the name that every cluster with DNS has.
func hasDNS(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, resolveTime)
	defer cancel()
	_, err := net.DefaultResolver.LookupHost(ctx, "kubernetes.default.svc")
	return err == nil
}

// short returns the essence of an error, without the addresses, which are known.
func short(err error) string {
	var timeout net.Error
	switch number := syscall.Errno(0); {
	case errors.As(err, &number):
		return number.Error()
	case errors.As(err, &timeout) && timeout.Timeout():
		return "no answer"
	case errors.Is(err, io.EOF):
		return "the connection was closed"
	}
	return err.Error()
}

// datagrams sends a burst of datagrams, and a second one if any was lost: a queue may overflow now
// and then.
func (t *Task) datagrams(ctx context.Context, address string) *UDP {
	best := &UDP{Sent: datagrams}
	for range 2 {
		if n := t.burst(ctx, address); n > best.Answered {
			best.Answered = n
		}
		if best.Answered == best.Sent {
			break
		}
	}
	return best
}

// burst returns how many of a burst of datagrams are answered.
func (t *Task) burst(ctx context.Context, address string) int {
	conn, err := (&net.Dialer{}).DialContext(ctx, "udp", address)
	if err != nil {
		return 0
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { conn.Close() })()
	base := rand.Uint32()
	answers := make(chan map[uint32]bool, 1)
	go func() {
		got, b := map[uint32]bool{}, make([]byte, 1<<16)
		defer func() { answers <- got }()
		for len(got) < datagrams {
			n, err := conn.Read(b)
			if errors.Is(err, net.ErrClosed) || isTimeout(err) {
				return
			}
			if err == nil && isDatagram(b[:n], t.Token, '!') {
				if number := binary.BigEndian.Uint32(b[tokenBytes+1:]) - base; number < datagrams {
					got[number] = true
				}
			}
		}
	}()
	for i := range uint32(datagrams) {
		conn.Write(t.datagram(base+i, datagramBytes))
		time.Sleep(datagramGap)
	}
	conn.SetReadDeadline(time.Now().Add(datagramWait))
	return len(<-answers)
}

func isTimeout(err error) bool {
	var timeout net.Error
	return errors.As(err, &timeout) && timeout.Timeout()
}

// datagram returns a question of the given length.
func (t *Task) datagram(number uint32, length int) []byte {
	b := make([]byte, max(length, minDatagram))
	copy(b, t.Token)
	b[tokenBytes] = '?'
	binary.BigEndian.PutUint32(b[tokenBytes+1:], number)
	return b
}

// bulk sends bytes there and back, and compares their hashes.
func (t *Task) bulk(ctx context.Context, address string, bytesToSend int64) *Bulk {
	conn, err := t.dial(ctx, address)
	if err != nil {
		return &Bulk{Error: short(err)}
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { conn.Close() })()
	conn.SetDeadline(time.Time{})
	began := time.Now()
	sent, failed := make(chan []byte, 1), make(chan error, 1)
	go func() {
		random := io.LimitReader(rand.NewChaCha8([32]byte{1: byte(began.UnixNano())}), bytesToSend)
		hash := sha256.New()
		_, err := io.Copy(conn.TCPConn, io.TeeReader(random, hash))
		conn.CloseWrite()
		sent <- hash.Sum(nil)
		failed <- err
	}()
	hash := sha256.New()
	got := &Bulk{}
	for b := make([]byte, 64<<10); got.Bytes < bytesToSend; {
		conn.SetReadDeadline(time.Now().Add(min(stall, bulkTime-time.Since(began))))
		n, err := conn.r.Read(b)
		hash.Write(b[:n])
		got.Bytes += int64(n)
		if err != nil {
			conn.Close() // ends the sender
			if got.Error = fmt.Sprintf("%s after %d of %d bytes", short(err), got.Bytes, bytesToSend); time.Since(
				began) >= bulkTime {
				got.Error = fmt.Sprintf("no more than %d of %d bytes in %s", got.Bytes, bytesToSend, bulkTime)
			}
			break
		}
	}
	got.Took = time.Since(began)
	want, err := <-sent, <-failed
	switch {
	case got.Error != "":
	case err != nil:
		got.Error = short(err)
	case !bytes.Equal(hash.Sum(nil), want):
		got.Error = "other bytes came back than were sent"
	}
	return got
}
