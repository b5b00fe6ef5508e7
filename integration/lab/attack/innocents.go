package attack

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"culvert/integration/lab/netns"
	"culvert/integration/lab/probe"
	"culvert/integration/lab/step"
)

// innocent is a well-behaved client during an attack. Each of its requests must be answered.
type innocent struct {
	what string // requests, in the plural
	n    int    // how many after the flood; during it, as many as there is time for
	ask  func(ctx context.Context) error
	// closes ask's sockets, and returns how many answers came after ask stopped waiting; nil:
	// nothing to close
	end func() int

	every time.Duration // pause before each request
	most  int           // maximum number of requests during the flood, or 0
}

// The kernel's receive buffers and queues cannot be divided into shares: what is lost there is
// requested again, but not more often than the kernel has counted losses.
const (
	attempts   = 3
	askTimeout = time.Second
	patience   = 20 * time.Second // with what TCP must carry
	maxLost    = 2                // stop asking after this many losses
)

// tally is the outcome of an innocent's requests.
type tally struct {
	asked, again, lost int
	late               int   // of those asked again
	err                error // of the first one lost
}

func (in *innocent) once(ctx context.Context, t *tally) {
	t.asked++
	for attempt := range attempts {
		if attempt > 0 {
			t.again++
		}
		time.Sleep(in.every)
		err := in.ask(ctx)
		if err == nil {
			return
		}
		if t.err == nil {
			t.err = err
		}
	}
	t.lost++
}

// beside runs the floods and lets the innocents ask meanwhile, and then in.n times each.
func (l *attacks) beside(ctx context.Context, floods []*probe.Flood, innocents ...*innocent) (_ string, err error) {
	defer step.Catch(&err)
	before := step.Must(l.kernelLosses())
	flooding, stop := context.WithCancel(ctx)
	defer stop()
	figures, errs := make([]string, len(floods)), make([]error, len(floods))
	var running, asking sync.WaitGroup
	for i, f := range floods {
		running.Go(func() {
			s, err := f.Run(flooding)
			figures[i], errs[i] = s.String(), err
		})
	}
	ended := make(chan struct{})
	go func() {
		running.Wait()
		close(ended)
	}()
	tallies := make([]tally, len(innocents))
	for i, in := range innocents {
		asking.Go(func() {
			t := &tallies[i]
			for during := len(floods) > 0; during && t.lost < maxLost && ctx.Err() == nil; {
				in.once(ctx, t)
				select {
				case <-ended:
					during = false
				default:
					during = t.asked != in.most
				}
			}
			<-ended
			for range in.n {
				if t.lost >= maxLost || ctx.Err() != nil {
					return
				}
				in.once(ctx, t)
			}
		})
	}
	asking.Wait()
	<-ended
	for i, in := range innocents {
		if in.end != nil {
			tallies[i].late = in.end()
		}
	}
	step.Try(errors.Join(append(errs, ctx.Err())...))
	after := step.Must(l.kernelLosses())
	return judgeTallies(figures, innocents, tallies, after-before)
}

// judgeTallies requires that nothing is lost, and no more is repeated than the kernel has lost.
func judgeTallies(figures []string, innocents []*innocent, tallies []tally, kernel int) (string, error) {
	var errs []error
	again := 0
	for i, t := range tallies {
		t.again = max(0, t.again-t.late)
		again += t.again
		if t.lost > 0 {
			errs = append(errs, fmt.Errorf("%d of %d %s lost, %d attempts each: %w", t.lost, t.asked, innocents[i].what,
				attempts, t.err))
		} else if t.again > kernel {
			errs = append(errs, fmt.Errorf("%d of %d %s lost, of which the kernel lost no more than %d: %w", t.again,
				t.asked, innocents[i].what, kernel, t.err))
		}
		figures = append(figures, fmt.Sprintf("%d %s", t.asked, innocents[i].what))
	}
	if again > 0 {
		figures = append(figures, fmt.Sprintf("%d lost by the kernel", again))
	}
	return strings.Join(figures, "; "), errors.Join(errs...)
}

// kernelLosses counts the packets that the kernel has lost on the way to a socket of any host: in
// full receive buffers, and in full backlogs of this machine's CPUs.
func (l *attacks) kernelLosses() (n int, err error) {
	defer step.Catch(&err)
	for _, h := range l.Hosts {
		err := h.Do(func() error {
			overflows, err := snmpCounter("Udp", "RcvbufErrors")
			n += overflows
			return err
		})
		if err != nil {
			return 0, fmt.Errorf("%s: %w", h.Name, err)
		}
	}
	text := step.Must(os.ReadFile("/proc/net/softnet_stat"))
	for line := range strings.Lines(string(text)) {
		var processed, dropped uint32
		step.Must(fmt.Sscanf(line, "%x %x", &processed, &dropped))
		n += int(dropped)
	}
	return n, nil
}

// snmpCounter returns a counter of a protocol in this thread's network namespace, of both families:
// such as RcvbufErrors of Udp and of Udp6.
func snmpCounter(protocol, name string) (n int, err error) {
	six, err := os.ReadFile("/proc/thread-self/net/snmp6")
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return 0, err
	}
	for line := range strings.Lines(string(six)) {
		var value int
		fmt.Sscanf(line, protocol+"6"+name+" %d", &value)
		n += value
	}
	four, err := os.ReadFile("/proc/thread-self/net/snmp")
	if err != nil {
		return 0, err
	}
	var names []string // in one line, and the values in the next
	for line := range strings.Lines(string(four)) {
		fields := strings.Fields(line)
		switch at := slices.Index(names, name); {
		case fields[0] != protocol+":":
		case names == nil:
			names = fields
		case at > 0:
			value, err := strconv.Atoi(fields[at])
			return n + value, err
		}
	}
	return 0, fmt.Errorf("/proc/net/snmp: no %s of %s", name, protocol)
}

// datagrams asks an echo server, from a separate port for each question.
func datagrams(what string, n int, e *probe.Ends, port int) *innocent {
	q := &questioner{timeout: askTimeout}
	return &innocent{what: what, n: n, end: q.late, ask: func(ctx context.Context) error {
		conn, err := e.DialUDP(ctx, port)
		if err != nil {
			return err
		}
		return q.ask(conn)
	}}
}

// withPinger is an innocent that asks by ICMP.
func withPinger(what string, n int, from *netns.Host, ask func(*probe.Pinger) error) *innocent {
	open := sync.OnceValues(func() (*probe.Pinger, error) { return probe.NewPinger(from) })
	return &innocent{what: what, n: n, ask: func(ctx context.Context) error {
		p, err := open()
		if err != nil {
			return err
		}
		return ask(p)
	}, end: func() int {
		if p, err := open(); err == nil {
			p.Close()
		}
		return 0
	}}
}

// echoRequests pings with packets of size bytes.
func echoRequests(what string, n int, from *netns.Host, to netip.Addr, size int) *innocent {
	return withPinger(what, n, from, func(p *probe.Pinger) error {
		_, err := p.Ping(to, size)
		return err
	})
}

// scrapes reads a gateway's metrics from another host.
func scrapes(n int, from *netns.Host, gateway netip.AddrPort) *innocent {
	return requests("scrapes", n, from, "http://"+gateway.String()+"/metrics", patience, "\nculvert_connections ")
}

// healthChecks requests a gateway's /healthz, like a kubelet.
func healthChecks(what string, n int, from *netns.Host, gateway netip.AddrPort) *innocent {
	return requests(what, n, from, "http://"+gateway.String()+"/healthz", askTimeout, "")
}

// requests fetches a page, which must contain a text.
func requests(what string, n int, from *netns.Host, url string, timeout time.Duration, text string) *innocent {
	client := http.Client{Timeout: timeout, Transport: &http.Transport{DialContext: from.Dial, DisableKeepAlives: true}}
	return &innocent{what: what, n: n, ask: func(context.Context) error {
		response, err := client.Get(url)
		if err != nil {
			return err
		}
		defer response.Body.Close()
		page, err := io.ReadAll(response.Body)
		if err == nil && (response.StatusCode != http.StatusOK || !bytes.Contains(page, []byte(text))) {
			err = fmt.Errorf("%s: %s, %d bytes, want %q in them", url, response.Status, len(page), text)
		}
		return err
	}}
}

// questions asks a NameServer over one connection, which must keep its backend. TCP repeats what
// the kernel loses.
func questions(n int, c *probe.Call, want string) *innocent {
	c.Patience = patience
	return &innocent{what: "questions on one connection", n: n, ask: func(context.Context) error {
		return c.AnsweredBy(want)
	}}
}

// newCalls are connections to a NameServer that the host want must answer, or any host if want is
// "". They are fewer than the attacker's, and stay open until the check ends.
func newCalls(n int, from *netns.Host, to netip.AddrPort, want string) *innocent {
	const every, most = 20 * time.Millisecond, 30
	return &innocent{what: "new connections", n: n, every: every, most: most, ask: func(ctx context.Context) error {
		c, err := probe.NewCall(ctx, from, to)
		if err != nil {
			return err
		}
		return c.AnsweredBy(want)
	}}
}

// idle is a TCP connection with both ends here.
type idle struct {
	*probe.Ends
	near, far *netns.Socket
}

func newIdle(e *probe.Ends) (*idle, error) {
	near, far, err := e.Connect()
	if err != nil {
		return nil, err
	}
	i := &idle{e, near, far}
	if err := errors.Join(i.speak(near, far), i.speak(far, near)); err != nil {
		i.close()
		return nil, fmt.Errorf("before the attack: %w", err)
	}
	return i, nil
}

// speak sends a few bytes, which must arrive.
func (i *idle) speak(from, to *netns.Socket) error {
	const word = 0x1d1e
	said, heard := binary.BigEndian.AppendUint16(nil, word), make([]byte, 2)
	if _, err := from.Write(said); err != nil {
		return err
	}
	if _, err := to.Read(heard); err != nil {
		return fmt.Errorf("data on an idle connection did not arrive: %w", err)
	}
	if binary.BigEndian.Uint16(heard) != word {
		return fmt.Errorf("%x arrived, want %x", heard, said)
	}
	return nil
}

// serverSpeaks sends from the far end, which a gateway that has forgotten the connection cannot
// carry.
func (i *idle) serverSpeaks() error { return i.speak(i.far, i.near) }

func (i *idle) close() {
	i.near.Close()
	i.far.Close()
}
