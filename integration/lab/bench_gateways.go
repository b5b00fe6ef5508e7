package lab

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"culvert/integration/lab/netns"
	"culvert/integration/lab/plan"
)

// variant is a kind of gateway in a bench.
type variant struct {
	Name string // for progress and JSON

	reference  bool
	procs      int    // cpus in its file, 0: the default
	noOffloads bool   // without UDP_GRO and UDP_SEGMENT
	config     string // file of culvert, "": the lab's gateway.yaml

	connections int // made before its figures are taken
}

// reachTimeout is how long gateways may take until pods reach each other. A lost handshake is
// repeated after 5 seconds.
const reachTimeout = 20 * time.Second

// useGateways replaces both gateways by those of the variant, in the same namespaces, on the same
// links.
func (l *Lab) useGateways(ctx context.Context, v *variant) error {
	if err := end(l.gateways()...); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, reachTimeout)
	defer cancel()
	for _, c := range []*plan.Cluster{&plan.V4[1], &plan.V4[0]} { // the server first
		p, err := l.startGateway(c, v)
		if err != nil {
			return err
		}
		if err := p.waitReady(ctx); err != nil {
			return err
		}
		if err := l.forgetNeighbours(c); err != nil {
			return err
		}
	}
	for i := range plan.V4[0].Nodes {
		from, to := plan.V4[0].Name+"/"+plan.V4[0].Nodes[i].PodName, plan.V4[1].Name+"/"+plan.V4[1].Nodes[i].PodName
		if err := l.pair(from, to).Reach(ctx); err != nil {
			return fmt.Errorf("%s: %w", v.Name, err)
		}
	}
	return nil
}

// ownProgram is this program, culvert-lab.
const ownProgram = "/proc/self/exe"

func (l *Lab) startGateway(c *plan.Cluster, v *variant) (*Process, error) {
	file, ready := cmp.Or(v.config, "gateway.yaml"), gatewayReady
	if v.procs > 0 {
		text, err := os.ReadFile(l.path(c.Name, file))
		if err != nil {
			return nil, err
		}
		file = fmt.Sprintf("cpus-%d-%s", v.procs, file)
		if err := l.write(c.Name, file, fmt.Appendf(text, "\ncpus: %d\n", v.procs)); err != nil {
			return nil, err
		}
	}
	command := []string{l.options.Culvert, "gateway"}
	if v.reference {
		command, ready = []string{ownProgram, "reference"}, referenceReady
	}
	command = append(command, "--config", l.path(c.Name, file))
	if v.noOffloads {
		command = append([]string{ownProgram, "without-offloads", "--"}, command...)
	}
	p, err := l.startProgram(l.Host(c.Name+"/gateway"), command[0], v.reference, command[1:]...)
	if err != nil {
		return nil, err
	}
	p.ready = ready
	l.add(p)
	return p, nil
}

// referenceReady checks for what the reference makes last.
func referenceReady(_ context.Context, h *netns.Host) error {
	return h.Do(func() error { return nft("list table ip reference\n") })
}

// forgetNeighbours makes the nodes ask for their gateway's MAC address again.
func (l *Lab) forgetNeighbours(c *plan.Cluster) error {
	for i := range c.Nodes {
		err := l.Host(c.Name + "/" + c.Nodes[i].Name).Do(func() error {
			link, err := netlink.LinkByName(tunnelLink)
			if err != nil {
				return err
			}
			neighbours, err := netlink.NeighList(link.Attrs().Index, netlink.FAMILY_V4)
			if err != nil {
				return err
			}
			for _, n := range neighbours {
				if err := netlink.NeighDel(&n); err != nil && !errors.Is(err, unix.ENOENT) {
					return err
				}
			}
			return nil
		})
		if err != nil {
			return fmt.Errorf("%s: neighbours: %w", c.Nodes[i].Name, err)
		}
	}
	return nil
}

// gateways returns the two gateway processes.
func (l *Lab) gateways() (both []*Process) {
	for _, p := range l.processes {
		if plan.IsGateway(p.Host.Name) {
			both = append(both, p)
		}
	}
	return both
}

// memory is how much memory a process uses, in bytes.
type memory struct {
	resident, peak float64 // the resident set now, and at its largest
	anonymous      float64 // the part without a file behind it
}

func (p *Process) memory() (m memory, err error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.cmd.Process.Pid))
	if err != nil {
		return m, err
	}
	for line := range strings.Lines(string(text)) {
		name, value, _ := strings.Cut(line, ":")
		kib, _ := strconv.ParseFloat(strings.TrimSuffix(strings.TrimSpace(value), " kB"), 64)
		switch name {
		case "VmRSS":
			m.resident = kib * 1024
		case "VmHWM":
			m.peak = kib * 1024
		case "RssAnon":
			m.anonymous = kib * 1024
		}
	}
	return m, nil
}

// counters sums culvert's metrics of one name over all labels and processes.
func counters(ctx context.Context, processes []*Process, names ...string) (map[string]float64, error) {
	sums := make(map[string]float64)
	for _, p := range processes {
		metrics, err := gatewayMetrics(ctx, p.Host)
		if err != nil {
			return nil, err
		}
		for labelled, value := range metrics {
			if name, _, _ := strings.Cut(labelled, "{"); slices.Contains(names, name) {
				sums[name] += value
			}
		}
	}
	return sums, nil
}
