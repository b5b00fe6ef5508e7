package lab

import (
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"time"

	"culvert/integration/lab/step"
)

// Who sends in a flow.
type doing int

const (
	idles doing = iota
	sends
	receives
	doings
)

// flow is one connection. Its two ends send messages of messageSize bytes: the numbers of the flow
// and the flow set, and the time of sending.
type flow struct {
	set    int // number of its flowSet
	kind   string
	number int // in the flowSet
	does   doing
	first  int // the end that speaks first after a pause, if the flow is idle
	udp    bool

	mu   sync.Mutex
	ends [2]flowEnd // near, far
	err  error      // the first error
	// time of the last message at each end
	came [2]time.Time
	late time.Duration // the longest wait for a message at the other end
}

func (f *flow) String() string {
	protocol := "TCP"
	if f.udp {
		protocol = "UDP"
	}
	return fmt.Sprintf("%s, %s, %s", f.kind, protocol, [...]string{"idle", "sends", "receives"}[f.does])
}

// flowEnd is one end of a flow.
type flowEnd struct {
	conn net.Conn       // nil at the far end of UDP
	from netip.AddrPort // at the far end, the near end's address as seen there
	send func([]byte) error
}

func endOf(conn net.Conn) flowEnd {
	return flowEnd{conn: conn, send: func(b []byte) error {
		_, err := conn.Write(b)
		return err
	}}
}

// flowEpoch is the start of times in messages: with a clock that may be set, messages would seem
// late.
var flowEpoch = time.Now()

// message is what an end of f sends now.
func (f *flow) message() []byte {
	b := make([]byte, messageSize)
	binary.BigEndian.PutUint32(b, uint32(f.number))
	binary.BigEndian.PutUint32(b[4:], uint32(f.set))
	binary.BigEndian.PutUint64(b[8:], uint64(time.Since(flowEpoch)))
	return b
}

// arrived records that a message has arrived at an end.
func (f *flow) arrived(end int, b []byte) {
	now := time.Now()
	late := now.Sub(flowEpoch) - time.Duration(binary.BigEndian.Uint64(b[8:]))
	f.mu.Lock()
	defer f.mu.Unlock()
	if last := f.came[end]; f.udp && f.does != idles && !last.IsZero() {
		late = max(late, now.Sub(last)-flowPause) // lost messages do not count as late
	}
	f.came[end], f.late = now, max(f.late, late)
}

const leastRTO = 200 * time.Millisecond // TCP_RTO_MIN (include/net/tcp.h)

// mostPause returns how long f pauses at most if its path carries nothing for outage. TCP sends
// again after leastRTO, and then waits twice as long each time (RFC 6298, Section 5.5): the first
// repetition after the outage arrives at most 2 * outage + leastRTO after the message was first
// sent.
func (f *flow) mostPause(outage time.Duration) time.Duration {
	if f.udp || outage < leastRTO { // in so short a time, the check allows no loss
		return outage
	}
	return 2*outage + leastRTO
}

func (f *flow) fail(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.err == nil {
		f.err = err
	}
}

// deliver sends a message from an end until it has arrived at the other; over TCP, once.
func (c *flowSet) deliver(f *flow, from int) error {
	began := time.Now()
	for tries := 0; ; tries++ {
		f.mu.Lock()
		send, err, came := f.ends[from].send, f.err, f.came[1-from]
		f.mu.Unlock()
		switch {
		case err != nil:
			return err
		case came.After(began):
			return nil
		case time.Since(began) > c.wait:
			return fmt.Errorf("no message from end %d within %v", from, c.wait)
		case tries == 0 || f.udp && tries%20 == 0:
			if err := send(f.message()); err != nil && !f.udp {
				return err
			}
		}
		time.Sleep(step.Poll)
	}
}

// send sends messages from one end of f until the flow set must be silent. Flows start at different
// times: if all spoke at once, they would wait for each other.
func (c *flowSet) send(f *flow) {
	from := 0
	if f.does == receives {
		from = 1
	}
	select {
	case <-c.done:
		return
	case <-time.After(flowPause * time.Duration(f.number) / time.Duration(len(c.flows))):
	}
	tick := time.NewTicker(flowPause)
	defer tick.Stop()
	for {
		select {
		case <-c.done:
			return
		case <-tick.C:
		}
		f.mu.Lock()
		send := f.ends[from].send
		f.mu.Unlock()
		if err := send(f.message()); err != nil && !f.udp {
			f.fail(fmt.Errorf("writing at end %d: %w", from, err))
			return
		}
	}
}
