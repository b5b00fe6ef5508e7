package probe

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"culvert/integration/lab/netns"
	"culvert/integration/lab/step"
)

const (
	flowWindow    = 256                    // requests under way
	flowPatience  = 100 * time.Millisecond // after which unanswered requests are lost
	flowPasses    = 5
	FlowPorts     = 60000 // source ports, from firstFlowPort on
	firstFlowPort = 2000
	flowTargets   = 10000 // destination ports, from here on
	flowDatagram  = 16    // bytes with the UDP header
)

// FillConnections makes n UDP connections through both gateways, with one datagram in each
// direction. Raw sockets replace many ports.
func (e *Ends) FillConnections(ctx context.Context, n int) error {
	near, err := netns.NewSocket(e.From, unix.SOCK_RAW, unix.IPPROTO_UDP)
	if err != nil {
		return err
	}
	defer near.Close()
	far, err := netns.NewSocket(e.To, unix.SOCK_RAW, unix.IPPROTO_UDP)
	if err != nil {
		return err
	}
	defer far.Close()
	f := &flowFiller{near: near, answered: make([]bool, n)}
	err = errors.Join(near.Connect(netip.AddrPortFrom(e.Target, 0)), far.Connect(netip.AddrPortFrom(e.WantSource, 0)),
		near.SetTimeout(flowPatience), far.SetTimeout(flowPatience))
	if err != nil {
		return fmt.Errorf("fill the table: %w", err)
	}
	var receiving sync.WaitGroup
	receiving.Go(func() { f.answer(far) })
	receiving.Go(f.collect)
	for range flowPasses {
		if err = f.request(ctx); err != nil || int(f.count.Load()) == n {
			break
		}
	}
	f.stopping.Store(true)
	receiving.Wait()
	if have := int(f.count.Load()); err == nil && have < n {
		return fmt.Errorf("fill the table: %d of %d connections after %d passes", have, n, flowPasses)
	}
	return err
}

// flowFiller tracks which connections have been answered.
type flowFiller struct {
	near     *netns.Socket
	answered []bool // written by collect only
	count    atomic.Int64
	stopping atomic.Bool
}

// request sends a datagram for each connection without an answer.
func (f *flowFiller) request(ctx context.Context) error {
	datagram := make([]byte, flowDatagram)
	binary.BigEndian.PutUint16(datagram[4:], flowDatagram) // and no checksum (RFC 768)
	sent, base, progress := int64(0), f.count.Load(), time.Now()
	for i := range f.answered {
		for have := f.count.Load() - base; sent-have >= flowWindow; have = f.count.Load() - base {
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			if time.Since(progress) > flowPatience {
				sent = have // all lost
			}
			time.Sleep(20 * time.Microsecond)
		}
		if f.answered[i] { // a late answer makes a second request, no harm
			continue
		}
		binary.BigEndian.PutUint16(datagram, uint16(firstFlowPort+i%FlowPorts))
		binary.BigEndian.PutUint16(datagram[2:], uint16(flowTargets+i/FlowPorts))
		if _, err := f.near.Write(datagram); err != nil {
			return fmt.Errorf("fill the table: %w", err)
		}
		sent++
		progress = time.Now()
	}
	return step.Sleep(ctx, flowPatience)
}

// collect records answers.
func (f *flowFiller) collect() {
	buffer := make([]byte, 2048)
	for !f.stopping.Load() {
		datagram, err := readRaw(f.near, buffer)
		if err != nil {
			continue
		}
		from, to := binary.BigEndian.Uint16(datagram), binary.BigEndian.Uint16(datagram[2:])
		i := int(from-flowTargets)*FlowPorts + int(to-firstFlowPort)
		if i >= 0 && i < len(f.answered) && !f.answered[i] {
			f.answered[i] = true
			f.count.Add(1)
		}
	}
}

// answer sends every datagram back.
func (f *flowFiller) answer(far *netns.Socket) {
	buffer := make([]byte, 2048)
	for !f.stopping.Load() {
		datagram, err := readRaw(far, buffer)
		if err != nil {
			continue
		}
		from, to := binary.BigEndian.Uint16(datagram), binary.BigEndian.Uint16(datagram[2:])
		binary.BigEndian.PutUint16(datagram, to)
		binary.BigEndian.PutUint16(datagram[2:], from)
		binary.BigEndian.PutUint16(datagram[6:], 0)
		far.Write(datagram) // a lost answer is requested again
	}
}

// readRaw returns the payload after the IPv4 header.
func readRaw(s *netns.Socket, buffer []byte) ([]byte, error) {
	n, err := s.Read(buffer)
	if err != nil {
		return nil, err
	}
	header := int(buffer[0]&0xf) * 4
	if n < header+flowDatagram {
		return nil, errors.New("short datagram")
	}
	return buffer[header:n], nil
}
