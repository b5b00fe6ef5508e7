package integration

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"culvert/geneve"
	"culvert/integration/need"
	"culvert/nat"
)

// counts are a gateway's metrics by series, and the kernel's counters of lost datagrams.
type counts struct {
	metrics   map[string]float64
	overflows float64 // datagrams lost at full UDP sockets of the gateway's namespace
	lost      float64 // packets that the kernel of this machine lost before they reached any socket
}

func readCounts(h *peerHost) *counts {
	h.t.Helper()
	page, err := h.get("/metrics")
	need.NoError(h.t, err)
	c := &counts{metrics: make(map[string]float64)}
	for line := range strings.Lines(page) {
		at := strings.LastIndexByte(line, ' ')
		if strings.HasPrefix(line, "#") || at < 0 {
			continue
		}
		var value float64
		if _, err := fmt.Sscan(line[at:], &value); err != nil {
			h.t.Fatalf("%s: %v", line, err)
		}
		c.metrics[line[:at]] = value
	}
	c.overflows = udpOverflows(h)
	c.lost = backlogDrops(h.t)
	return c
}

// udpOverflows reads RcvbufErrors of the host's namespace.
func udpOverflows(h *peerHost) (n float64) {
	h.t.Helper()
	var names []string
	for line := range strings.Lines(h.run("cat", "/proc/net/snmp")) {
		if fields := strings.Fields(line); fields[0] == "Udp:" && names == nil {
			names = fields
		} else if fields[0] == "Udp:" {
			if _, err := fmt.Sscan(fields[slices.Index(names, "RcvbufErrors")], &n); err != nil {
				h.t.Fatal(err)
			}
		}
	}
	return n
}

// backlogDrops sums the second column of softnet_stat: packets that met a full backlog.
func backlogDrops(t *testing.T) (sum float64) {
	t.Helper()
	text, err := os.ReadFile("/proc/net/softnet_stat")
	need.NoError(t, err)
	for line := range strings.Lines(string(text)) {
		var processed, dropped uint32
		if _, err := fmt.Sscanf(line, "%x %x", &processed, &dropped); err != nil {
			t.Fatal(err)
		}
		sum += float64(dropped)
	}
	return sum
}

func (c *counts) dropped(direction string, reasons ...string) (sum float64) {
	for _, r := range reasons {
		sum += c.metrics[fmt.Sprintf("culvert_dropped_packets_total{direction=%q,reason=%q}", direction, r)]
	}
	return sum
}

func (c *counts) total(name, direction string) float64 {
	return c.metrics[fmt.Sprintf("culvert_%s_packets_total{direction=%q}", name, direction)]
}

func (c *counts) overflow(socket string) float64 {
	return c.metrics[fmt.Sprintf("culvert_socket_overflows_total{socket=%q}", socket)]
}

// minus returns what has been counted since before.
func (c *counts) minus(before *counts) *counts {
	d := &counts{maps.Clone(c.metrics), c.overflows - before.overflows, c.lost - before.lost}
	for series, value := range before.metrics {
		d.metrics[series] -= value
	}
	return d
}

// strangerDrops are the reasons for which datagrams of unknown senders are dropped.
var strangerDrops = []string{"not-wireguard", "bad-mac1", "handshake-rate", "stranger-data", "tunnel-discard"}

// account returns an error unless each datagram of the floods is in one of the gateway's counters.
// before are the counts at the start of the floods, which lasted took.
func (c *counts) account(before *counts, floods []*flood, took time.Duration) error {
	var errs []error
	check := func(ok bool, format string, args ...any) {
		if !ok {
			errs = append(errs, fmt.Errorf(format, args...))
		}
	}
	d := c.minus(before)
	check(d.overflow("geneve")+d.overflow("wireguard") == d.overflows,
		"%v and %v overflows counted, the kernel says %v", d.overflow("geneve"), d.overflow("wireguard"), d.overflows)

	var natReasons, geneveReasons []string
	for _, r := range nat.Reasons() {
		natReasons = append(natReasons, r.String())
	}
	for r := geneve.Accepted + 1; r < geneve.UnknownTunnel; r++ { // of received datagrams
		geneveReasons = append(geneveReasons, r.String())
	}
	for _, direction := range []string{"outbound", "inbound"} {
		received, drops := d.total("received", direction), d.dropped(direction, natReasons...)
		forwarded, delivered := d.total("forwarded", direction), d.total("delivered", direction)
		check(received == forwarded+delivered+drops,
			"%s: received %v, forwarded %v, delivered %v, dropped %v", direction, received, forwarded, delivered, drops)
	}

	sent := make(map[*peerHost]float64)
	for _, f := range floods {
		if !f.train { // a train overflows as one datagram, or is counted above
			sent[f.from] += float64(f.sent)
		}
	}
	for from, sum := range sent {
		var found float64
		if from.name == "rome-node" {
			found = d.metrics[`culvert_node_received_packets_total{node="rome-1"}`] + d.dropped("outbound",
				geneveReasons...) + d.overflow("geneve")
		} else {
			found = d.dropped("inbound", strangerDrops...) + d.overflow("wireguard") + mostAdmitted(took)
		}
		check(sum <= found+d.lost, "%s sent %v datagrams, of which only %v are in a counter; %v were lost before",
			from.name, sum, found, d.lost)
	}

	for _, r := range strangerDrops {
		check(d.dropped("inbound", r) > 0, "none dropped inbound for %s", r)
	}
	check(d.dropped("outbound", "unknown-node") > 0, "none dropped outbound for unknown-node")
	for _, socket := range []string{"geneve", "wireguard"} {
		check(d.overflow(socket) > 0, "no overflow of socket %s: the flood was none", socket)
	}
	return errors.Join(errs...)
}

// mostAdmitted limits the handshake messages, cookies and keepalives that may have reached
// wireguard-go, which does not count what it does with them.
func mostAdmitted(took time.Duration) float64 {
	const kinds, burst, perSecond = 3, 8, 100
	return kinds * (burst + perSecond*took.Seconds())
}

// drops returns the lines of the drop counters.
func (c *counts) drops() string {
	var lines []string
	for series, value := range c.metrics {
		if value > 0 && (strings.Contains(series, "drop") || strings.Contains(series, "overflow")) {
			lines = append(lines, fmt.Sprintf("%s %.0f", series, value))
		}
	}
	slices.Sort(lines)
	return strings.Join(lines, "\n")
}
