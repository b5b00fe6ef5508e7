package lab

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"culvert/integration/lab/netns"
	"culvert/integration/lab/plan"
	"culvert/integration/lab/reference"
	"culvert/integration/lab/step"
)

// Variant is a kind of gateway in a bench.
type Variant struct {
	Name string // for progress and JSON

	Reference  bool
	Procs      int    // cpus in its file, 0: the default
	NoOffloads bool   // without UDP_GRO and UDP_SEGMENT
	Config     string // file of culvert, "": the lab's gateway.yaml

	Connections int // made before its figures are taken
}

// ReachTimeout is how long gateways may take until pods reach each other. A lost handshake is
// repeated after 5 seconds.
const ReachTimeout = 20 * time.Second

// UseGateways replaces both gateways by those of the variant, in the same namespaces, on the same
// links.
func (l *Lab) UseGateways(ctx context.Context, v *Variant) error {
	if err := end(l.Gateways()...); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, ReachTimeout)
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
		if err := l.Pair(from, to).Reach(ctx); err != nil {
			return fmt.Errorf("%s: %w", v.Name, err)
		}
	}
	return nil
}

// ownProgram is this program, culvert-lab.
const ownProgram = "/proc/self/exe"

func (l *Lab) startGateway(c *plan.Cluster, v *Variant) (*Process, error) {
	file, ready := cmp.Or(v.Config, "gateway.yaml"), gatewayReady
	if v.Procs > 0 {
		text, err := os.ReadFile(l.Path(c.Name, file))
		if err != nil {
			return nil, err
		}
		file = fmt.Sprintf("cpus-%d-%s", v.Procs, file)
		if err := l.Write(c.Name, file, fmt.Appendf(text, "\ncpus: %d\n", v.Procs)); err != nil {
			return nil, err
		}
	}
	command := []string{l.Options.Culvert, "gateway"}
	if v.Reference {
		command, ready = []string{ownProgram, "reference"}, referenceReady
	}
	command = append(command, "--config", l.Path(c.Name, file))
	if v.NoOffloads {
		command = append([]string{ownProgram, "without-offloads", "--"}, command...)
	}
	p, err := l.startProgram(l.Host(c.Name+"/gateway"), command[0], v.Reference, command[1:]...)
	if err != nil {
		return nil, err
	}
	p.ready = ready
	l.add(p)
	return p, nil
}

// referenceReady checks for what the reference makes last.
func referenceReady(_ context.Context, h *netns.Host) error {
	return h.Do(func() error { return reference.NFT("list table ip reference\n") })
}

// forgetNeighbours makes the nodes ask for their gateway's MAC address again.
func (l *Lab) forgetNeighbours(c *plan.Cluster) error {
	for i := range c.Nodes {
		err := l.Host(c.Name + "/" + c.Nodes[i].Name).Do(func() error {
			link, err := netlink.LinkByName(TunnelLink)
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

// Gateways returns the two gateway processes.
func (l *Lab) Gateways() (both []*Process) {
	for _, p := range l.Processes {
		if plan.IsGateway(p.Host.Name) {
			both = append(both, p)
		}
	}
	return both
}

// Memory is how much memory a process uses, in bytes.
type Memory struct {
	Resident, Peak float64 // the resident set now, and at its largest
	Anonymous      float64 // the part without a file behind it
}

// Memory reads how much memory the process uses.
func (p *Process) Memory() (m Memory, err error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.Cmd.Process.Pid))
	if err != nil {
		return m, err
	}
	for line := range strings.Lines(string(text)) {
		name, value, _ := strings.Cut(line, ":")
		kib, _ := strconv.ParseFloat(strings.TrimSuffix(strings.TrimSpace(value), " kB"), 64)
		switch name {
		case "VmRSS":
			m.Resident = kib * 1024
		case "VmHWM":
			m.Peak = kib * 1024
		case "RssAnon":
			m.Anonymous = kib * 1024
		}
	}
	return m, nil
}

// Counters sums culvert's metrics of one name over all labels and processes.
func Counters(ctx context.Context, processes []*Process, names ...string) (map[string]float64, error) {
	sums := make(map[string]float64)
	for _, p := range processes {
		metrics, err := GatewayMetrics(ctx, p.Host)
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

// CulvertGateway is culvert as the lab configures it.
var CulvertGateway = Variant{Name: "culvert"}

// ReferenceGateway is a gateway made of the kernel's parts.
var ReferenceGateway = Variant{Name: "reference", Reference: true}

// FreshGateways restarts both gateways without their former connections.
func (l *Lab) FreshGateways(ctx context.Context, change func(i int, config Object)) (err error) {
	defer step.Catch(&err)
	for i := range plan.V4 {
		config := l.GatewayConfig(i)
		if change != nil {
			change(i, config)
		}
		step.Try(l.WriteYAML(plan.V4[i].Name, "gateway.yaml", config))
	}
	step.Try(end(l.Gateways()...))
	for i := range plan.V4 {
		if err := os.Remove(l.Path(plan.V4[i].Name, filepath.Join("state", plan.V4[1-i].Name, "connections"))); err !=
			nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return l.UseGateways(ctx, &CulvertGateway)
}

// Dropped lists what the gateways have dropped since they started, and why.
func (l *Lab) Dropped(ctx context.Context) string {
	var all strings.Builder
	for _, p := range l.Gateways() {
		page, err := gatewayGet(ctx, p.Host, "/metrics")
		if err != nil {
			fmt.Fprintf(&all, "  %s: %v\n", p.Host.Name, err)
		}
		for line := range strings.Lines(page) {
			if labels, ok := strings.CutPrefix(line, "culvert_dropped_packets_total"); ok &&
				!strings.HasSuffix(line, " 0\n") {
				fmt.Fprintf(&all, "  %s: %s", p.Host.Name, labels)
			}
		}
	}
	return all.String()
}

// Socket is the control socket of the gateway of clusters[i].
func (l *Lab) Socket(i int) string {
	return filepath.Join(l.Dir, "culvert", plan.V4[i].Name+"-"+plan.V4[1-i].Name+".sock")
}
