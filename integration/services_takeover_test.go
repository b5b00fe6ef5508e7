package integration

import (
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"culvert/integration/need"
)

// A serviceTraffic is the constant traffic of a serviceLab's clients: connections, one after
// another, and datagrams.
type serviceTraffic struct {
	l        *serviceLab
	stop     chan struct{}
	running  sync.WaitGroup
	connects atomic.Int64
	mu       sync.Mutex
	failed   []error       // failed connections, and those that needed a second SYN
	repeated int64         // serviceLab.repeated at the start
	pauses   time.Duration // the longest between two answers to datagrams
	sent     atomic.Int64  // datagrams
	answered atomic.Int64
}

const datagramPace = time.Millisecond

// traffic makes clients send requests until end is called.
func (l *serviceLab) traffic() *serviceTraffic {
	l.Helper()
	x := &serviceTraffic{l: l, stop: make(chan struct{}), repeated: l.repeated.Load()}
	for _, r := range []struct {
		from *peerHost
		to   string
	}{{l.out, "172.18.0.2:30010"}, {l.c, "10.96.0.10:80"}, {l.n1, "[fd96::10]:80"}, {l.out, "[fd18::2]:30010"}} {
		x.running.Go(func() {
			for !x.stopped() {
				err := l.connect(r.from, r.to)
				x.connects.Add(1)
				if err != nil {
					x.mu.Lock()
					x.failed = append(x.failed, fmt.Errorf("%s %s: %w", r.from.name, r.to, err))
					x.mu.Unlock()
				}
			}
		})
	}
	conn, err := l.out.dial("udp", "172.18.0.2:30010")
	need.NoError(l, err)
	x.running.Go(func() {
		defer conn.Close()
		for tick := time.NewTicker(datagramPace); !x.stopped(); <-tick.C {
			conn.Write([]byte("?"))
			x.sent.Add(1)
		}
		const lastAnswers = 5 * time.Second // on a busy machine
		for deadline := time.Now().Add(lastAnswers); x.answered.Load() < x.sent.Load() && time.Now().Before(deadline); {
			time.Sleep(time.Millisecond) // polling; missing answers are counted, not a failure
		}
	})
	x.running.Go(func() {
		var last time.Time
		for b := make([]byte, 100); ; {
			if _, err := conn.Read(b); errors.Is(err, net.ErrClosed) {
				return
			} else if err != nil {
				continue
			}
			now := time.Now()
			if !last.IsZero() {
				x.pauses = max(x.pauses, now.Sub(last))
			}
			last = now
			x.answered.Add(1)
		}
	})
	return x
}

func (x *serviceTraffic) stopped() bool {
	select {
	case <-x.stop:
		return true
	default:
		return false
	}
}

// more waits until clients have connected some more times.
func (x *serviceTraffic) more(connects int64) {
	x.l.Helper()
	from := x.connects.Load()
	await(x.l.T, "connections", func() bool { return x.connects.Load() >= from+connects })
}

// end returns the longest pause between two answers to datagrams. It fails the test if a connection
// has failed or a datagram was lost.
func (x *serviceTraffic) end(what string) time.Duration {
	x.l.Helper()
	close(x.stop)
	x.running.Wait()
	for i, err := range x.failed {
		if i < 10 {
			x.l.Errorf("%s: %v", what, err)
		}
	}
	if n := x.l.repeated.Load() - x.repeated; n > 0 {
		x.l.Errorf("%s: %d connections needed a second SYN-ACK", what, n)
	}
	sent := x.sent.Load()
	lost := sent - x.answered.Load()
	if lost > 0 {
		x.l.Errorf("%s: %d of %d datagrams were lost", what, lost, sent)
	}
	x.l.Logf("%s: %d connections, %d failed or waited; %d datagrams, %d lost, longest pause %v",
		what, x.connects.Load(), len(x.failed), sent, lost, x.pauses.Round(100*time.Microsecond))
	return x.pauses
}

// takeOver starts another node process with the same file, which takes over, and waits until the
// previous one has ended without an error.
func (l *serviceLab) takeOver() {
	l.Helper()
	before := l.node
	l.node = l.n1.start(nil, os.Getenv(binaryEnv), "node", "--config", l.file, "--takeover")
	eventually(l.T, "the end of the process before", func() error {
		if err := l.node.running(); err != nil {
			l.Fatal(err, l.node.output())
		}
		select {
		case <-before.ended:
			return nil
		default:
			return errNotYet
		}
	})
	if code := before.cmd.ProcessState.ExitCode(); code != 0 || !strings.Contains(before.output(),
		"another process serves") {
		l.Errorf("the process before ended with %d:\n%s", code, before.output())
	}
}

// handOverPause is how long nobody may serve during a hand-over. The best of several counts, so
// that the pauses of a busy machine do not.
const handOverPause = 100 * time.Millisecond

// TestServicesTakeOver lets processes take over one from another: connections of all kinds
// continue, no new one waits, no datagram is lost, and nothing is left behind at the end.
func TestServicesTakeOver(t *testing.T) {
	beside(t, func(t *testing.T) {
		l := newServiceLab(t)
		before := l.kernelState()
		l.state = t.TempDir()
		serve := []string{served("web", "tcp", 10, "", "pa", "pb"), served("dns", "udp", 10, "", "pa", "pb")}
		l.start(serve...)
		var streams, tcp []*serviceStream
		for len(streams) < 60 {
			for _, r := range []struct {
				from        *peerHost
				network, to string
			}{
				{l.out, "tcp", "172.18.0.2:30010"}, {l.c, "tcp", "10.96.0.10:80"}, {l.n1, "tcp", "[fd96::10]:80"},
				{l.out, "tcp", "[fd18::2]:30010"}, {l.n1, "udp", "10.96.0.10:80"}, {l.b, "tcp", "172.18.0.2:30010"},
			} {
				s := l.stream(r.from, r.network, r.to)
				if streams = append(streams, s); r.network == "tcp" {
					tcp = append(tcp, s)
				}
			}
		}
		shortest := time.Hour
		for i := range 3 {
			what := fmt.Sprintf("take-over %d", i+1)
			traffic := l.traffic()
			traffic.more(100)
			l.all(tcp, what, (*serviceStream).send)
			l.takeOver()
			l.all(tcp, what, (*serviceStream).heard)
			traffic.more(100)
			shortest = min(shortest, traffic.end(what))
			l.all(streams, what, (*serviceStream).alive)
		}
		if shortest > handOverPause {
			t.Errorf("nobody served for %v, want at most %v", shortest, handOverPause)
		}
		for _, s := range streams {
			s.Close()
		}
		l.node.stop()
		l.state = ""
		l.start(serve...)
		l.node.stop()
		if after := l.kernelState(); after != before {
			t.Errorf("left behind:\n%s\nthere was:\n%s", after, before)
		}
	}, programs("ip", "ip"))
}
