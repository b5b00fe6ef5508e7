package lab

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"culvert/gateway/node"
	"culvert/integration/lab/netns"
	"culvert/integration/lab/plan"
)

// Options select the kind of lab to build.
type Options struct {
	Culvert  string    // absolute path of the program that gateways and nodes run
	Mode     node.Mode // of every node
	Offloads bool      // super-frames on the underlay; false: ordinary frames
	Outside  bool      // hosts outside the clusters take part, see Outside
	Sandbox  Sandbox   // around each gateway
	Attacks  bool      // some hosts are hostile, see Attacks
	Inside   Families  // of pods
	Outside6 bool      // tunnels run over IPv6
	Keep     bool      // gateways are restarted, see Keep
	Rome     ClusterOptions
	Milan    ClusterOptions
}

// Families are the address families of a lab's pods.
type Families uint8

// Families of pods.
const (
	IPv4 Families = iota
	IPv4AndIPv6
	IPv6
)

// ClusterOptions may differ between the clusters.
type ClusterOptions struct {
	MTU      int    // of the gateway
	NodeMTU  int    // of the nodes' tunnel links
	PodMTU   int    // of the pods' links
	MSSClamp string // of the gateway
}

// Standard is a lab with consistent MTUs.
func Standard(mode node.Mode, offloads bool) Options {
	c := ClusterOptions{MTU: 1340, NodeMTU: 1340, PodMTU: 1340, MSSClamp: "auto"}
	return Options{Mode: mode, Offloads: offloads, Rome: c, Milan: c}
}

// String describes the lab in a line.
func (o Options) String() string {
	s := fmt.Sprintf("nodes %s, offloads ", o.Mode)
	if o.Offloads {
		s += "on (super-frames)"
	} else {
		s += "off (ordinary frames)"
	}
	if o.Rome.MTU != o.Milan.MTU {
		s += fmt.Sprintf(", mtu %d and %d", o.Rome.MTU, o.Milan.MTU)
	}
	s += [...]string{"", ", IPv4 and IPv6", ", IPv6 alone"}[o.Inside]
	if o.Outside6 {
		s += ", over IPv6"
	}
	if o.Keep {
		s += ", restarts"
	}
	if o.Outside {
		s += ", mappings, services, outside hosts"
	}
	if o.Sandbox.Runsc != "" {
		s += ", gateways in gVisor"
	}
	if o.Attacks {
		s += ", attacks"
	}
	return s
}

// Lab is two running clusters.
type Lab struct {
	Dir string // configurations, keys and logs

	Options   Options
	PublicKey [len(plan.V4)]string // of each gateway
	Hosts     []*netns.Host
	six       map[string]*netns.Host // the same by name, with their IPv6 addresses
	Processes []*Process
	flowSets  int           // number of flow sets made
	cut       time.Duration // the longest cut of hand-overs
}

// StartTimeout is how long a gateway or node may take to serve, even on a busy machine.
const StartTimeout = time.Minute

// Start builds the clusters and waits until their gateways and nodes serve. It works only in the
// holder, see Isolate. The caller must call Stop even after an error, which says where the logs
// are.
func Start(ctx context.Context, dir string, o Options) (*Lab, error) {
	l := &Lab{Dir: dir, Options: o, six: make(map[string]*netns.Host)}
	for i := range plan.V4 {
		if err := l.buildCluster(&plan.V4[i], o.of(&plan.V4[i])); err != nil {
			return l, fmt.Errorf("lab: build %s: %w", plan.V4[i].Name, err)
		}
	}
	if err := l.peer(); err != nil {
		return l, fmt.Errorf("lab: %w", err)
	}
	for _, p := range slices.Compact(append([]*plan.Plan{&plan.V4}, l.Plans()...)) { // every host has an IPv4 address
		for i := range p {
			if err := l.addAddresses(p, i); err != nil {
				return l, fmt.Errorf("lab: addresses: %w", err)
			}
		}
	}
	if o.Outside {
		for _, p := range l.Plans() {
			for i := range p {
				if err := l.addOutside(&p[i], &p[1-i]); err != nil {
					return l, fmt.Errorf("lab: outside of %s: %w", p[i].Name, err)
				}
			}
		}
	}
	if err := l.WriteConfigs(); err != nil {
		return l, fmt.Errorf("lab: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, StartTimeout)
	defer cancel()
	if err := l.startProcesses(ctx); err != nil {
		return l, fmt.Errorf("lab: %w", err)
	}
	return l, nil
}

func (o *Options) of(c *plan.Cluster) *ClusterOptions {
	if c.Name == plan.V4[0].Name {
		return &o.Rome
	}
	return &o.Milan
}

// Host returns the named host, such as rome/pod1, or nil.
func (l *Lab) Host(name string) *netns.Host {
	i := slices.IndexFunc(l.Hosts, func(h *netns.Host) bool { return h.Name == name })
	if i < 0 {
		return nil
	}
	return l.Hosts[i]
}

// Stop ends all processes with SIGTERM, in at most stopTimeout, and releases the namespaces. The
// error reports processes that did not end cleanly.
func (l *Lab) Stop() error {
	err := end(l.Processes...)
	for _, h := range l.Hosts {
		h.Close()
	}
	return err
}

// startProcesses starts all gateways and nodes and waits until they serve. The server's gateway
// comes first: a client whose first handshake finds no server retries only after 5 seconds.
func (l *Lab) startProcesses(ctx context.Context) error {
	for _, c := range []*plan.Cluster{&plan.V4[1], &plan.V4[0]} {
		gateway, err := l.startCulvert(c.Name + "/gateway")
		if err != nil {
			return err
		}
		for _, n := range c.Nodes {
			if _, err := l.startCulvert(c.Name + "/" + n.Name); err != nil {
				return err
			}
		}
		if err := gateway.waitReady(ctx); err != nil {
			return err
		}
	}
	for _, p := range l.Processes {
		if err := p.waitReady(ctx); err != nil {
			return err
		}
	}
	return nil
}

// startCulvert starts the gateway or node of a host.
func (l *Lab) startCulvert(host string) (*Process, error) {
	cluster, name, _ := strings.Cut(host, "/")
	kind, ready := "node", l.nodeReady
	if name == "gateway" {
		kind, ready = "gateway", gatewayReady
	}
	p, err := l.startProgram(l.Host(host), l.Options.Culvert, kind == "node", kind, "--config",
		l.Path(cluster, name+".yaml"))
	if err != nil {
		return nil, err
	}
	p.ready = ready
	l.add(p)
	return p, nil
}

// add adds a started process to the lab, replacing the previous one of its host.
func (l *Lab) add(p *Process) {
	i := slices.IndexFunc(l.Processes, func(other *Process) bool { return other.Host.Name == p.Host.Name })
	if i < 0 {
		l.Processes = append(l.Processes, p)
	} else {
		l.Processes[i] = p
	}
}

// Path is where a file of a cluster is.
func (l *Lab) Path(cluster, file string) string { return filepath.Join(l.Dir, cluster, file) }

// Write makes a file below the lab's folder that other users cannot read.
func (l *Lab) Write(cluster, file string, text []byte) error {
	if err := os.MkdirAll(filepath.Join(l.Dir, cluster), 0o700); err != nil {
		return err
	}
	return os.WriteFile(l.Path(cluster, file), text, 0o600)
}

// Check is one promise, tested between two hosts.
type Check struct {
	Name string // the promise
	Path string // the two hosts

	// Run returns a measured figure, and an error with the expectation and the observation.
	Run func(ctx context.Context) (figure string, err error)
}

// CheckTimeout bounds one check.
const CheckTimeout = 2 * time.Minute

// WhileRunning returns a context that ends when a gateway or node does, because all following
// checks would wait in vain.
func (l *Lab) WhileRunning(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	if l.Options.Attacks {
		return ctx, func() { cancel(nil) } // each check has its own gateways and watches them
	}
	for _, p := range l.Processes {
		go func() {
			select {
			case <-p.ended:
				if p.stopped.Load() {
					return // a fault or a restart
				}
				cancel(fmt.Errorf("%s ended by itself (%w)", p.Name(), p.HowEnded()))
			case <-ctx.Done():
			}
		}()
	}
	return ctx, func() { cancel(nil) }
}
