// Package load reports when a node's process has no CPU time to spare and loses packets, as a
// gateway does for itself.
package load

import (
	"context"
	"sync"
	"time"

	"github.com/sirupsen/logrus"
	"github.com/vishvananda/netlink"

	"culvert/gateway/control"
	"culvert/gateway/health"
	"culvert/gateway/procs"
	"culvert/gateway/prometheus"
	"culvert/geneve/udp"
)

// interval is how often a Watch looks.
const interval = time.Second

// A Watch looks at the process once a second. The zero Watch is ready, and all its methods may be
// called by several goroutines.
type Watch struct {
	mu       sync.Mutex
	running  bool                              // +checklocks:mu
	fileless bool                              // +checklocks:mu
	devices  []func() []string                 // +checklocks:mu
	sockets  map[string]func() udp.Stats       // by kind of sender; +checklocks:mu
	load     health.Load                       // +checklocks:mu
	read     func(name string) (intake, error) // of a device; replaced by tests
}

// An intake counts the packets that the kernel has passed to a TUN device since the device was
// made.
type intake struct{ bytes, lost uint64 }

// Devices makes the Watch look at the TUN devices that this process reads. names returns them, and
// they may change.
func (w *Watch) Devices(names func() []string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.devices = append(w.devices, names)
}

// Socket makes the Watch look at the socket that receives from names, such as "gateways".
func (w *Watch) Socket(from string, stats func() udp.Stats) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.sockets == nil {
		w.sockets = make(map[string]func() udp.Stats)
	}
	w.sockets[from] = stats
}

// Run looks once a second, and logs changes, until ctx is done. It returns at once if it is already
// running. node is the node's name; fileless says that the node has no file for the field cpus.
func (w *Watch) Run(ctx context.Context, node string, fileless bool, log logrus.FieldLogger) {
	w.mu.Lock()
	if w.running {
		w.mu.Unlock()
		return
	}
	w.running, w.fileless = true, fileless
	w.mu.Unlock()
	tick := time.NewTicker(interval)
	defer tick.Stop()
	allowed, began := procs.Allowed(), time.Now()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		cpu := health.CPU{Used: procs.Used(), Procs: procs.Count(), CPUs: allowed.CPUs, Quota: allowed.Quota}
		for _, f := range w.look(time.Since(began), &cpu, node) {
			entry := log.WithField("cause", f.Cause.Name)
			if f.Cause.Level == health.Warning {
				entry.Warn(f.Text)
			} else {
				entry.Info(f.Text)
			}
		}
	}
}

func (w *Watch) look(now time.Duration, cpu *health.CPU, node string) []health.Finding {
	w.mu.Lock()
	defer w.mu.Unlock()
	changes := w.load.Look(now, cpu, w.intakes, health.OfNode, node)
	for i := range changes {
		changes[i] = w.inWords(changes[i])
	}
	return changes
}

// inWords changes a finding's remedy to fit the way in which the node is configured.
//
// +checklocks:w.mu
func (w *Watch) inWords(f health.Finding) health.Finding {
	if w.fileless {
		return f.WithoutFile()
	}
	return f
}

// intakes reads the counters of all devices and sockets.
//
// +checklocks:w.mu
func (w *Watch) intakes() (all []health.Socket) {
	for from, stats := range w.sockets {
		s := stats()
		all = append(all, health.Socket{Name: "socket of " + from, From: from, Bytes: s.ReceivedBytes,
			Overflows: s.Overflows, Waits: s.Waits && !s.OverflowsKnown})
	}
	w.eachDevice(func(name string, i intake) {
		all = append(all, health.Socket{Name: name, From: "this node by " + name, Bytes: i.bytes, Overflows: i.lost})
	})
	return all
}

// eachDevice calls do for every device that is there.
//
// +checklocks:w.mu
func (w *Watch) eachDevice(do func(name string, i intake)) {
	read := w.read
	if read == nil {
		read = readDevice
	}
	for _, names := range w.devices {
		for _, name := range names() {
			if i, err := read(name); err == nil { // otherwise it is gone
				do(name, i)
			}
		}
	}
}

// readDevice asks the kernel, which counts what the process reads from a TUN device as sent.
func readDevice(name string) (intake, error) {
	d, err := netlink.LinkByName(name)
	if err != nil || d.Attrs().Statistics == nil {
		return intake{}, err
	}
	s := d.Attrs().Statistics
	return intake{bytes: s.TxBytes, lost: s.TxDropped}, nil
}

// Findings returns the present findings.
func (w *Watch) Findings() []control.Finding {
	w.mu.Lock()
	defer w.mu.Unlock()
	f := w.load.Finding()
	if f.Cause == nil {
		return nil
	}
	f = w.inWords(f)
	return []control.Finding{{Level: f.Cause.Level.String(), Cause: f.Cause.Name, Kind: string(f.Kind), Of: f.Of,
		Text: f.Text}}
}

// Drops returns what the kernel dropped because this process had not read the packets before, by
// TUN device.
func (w *Watch) Drops() (drops []control.Drop) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.eachDevice(func(name string, i intake) {
		if i.lost > 0 {
			drops = append(drops, control.Drop{Reason: name, Packets: i.lost})
		}
	})
	return drops
}

// Metrics returns the present findings and the losses of devices in Prometheus' text format, under
// the same names as a gateway's.
func (w *Watch) Metrics() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	var b prometheus.Page
	b.Family(prometheus.Gauge, "fault",
		"1 for each fault that is known now, by cause and the node that it concerns. The log has the sentence.",
		"cause", "of")
	if f := w.load.Finding(); f.Cause != nil {
		b.Add(1, f.Cause.Name, f.Of)
	}
	b.Family(prometheus.Counter, "device_overflows_total",
		"Packets that the kernel dropped because culvert had not read those before, by TUN device.", "device")
	w.eachDevice(func(name string, i intake) { b.Count(i.lost, name) })
	return b.Text.String()
}
