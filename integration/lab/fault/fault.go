package fault

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"sigs.k8s.io/yaml"

	"culvert/gateway/configfile"
	"culvert/gateway/node"
	"culvert/integration/lab"
	"culvert/integration/lab/plan"
	"culvert/integration/lab/step"
)

// Lab is a lab in which faults can be made.
type Lab struct {
	*lab.Lab
	broken []*Fault
	loads  map[*Fault]*loading
}

// Restart restarts a gateway or node that no fault keeps off.
func (l *Lab) Restart(ctx context.Context, host string) error {
	if f := l.OffBy(host); f != nil {
		return fmt.Errorf("%s is kept off by the fault %s; take it back first: culvert-lab mend %s", host,
			f.Name, f.Name)
	}
	return errors.Join(l.Lab.Restart(ctx, host), l.remakeKernelFaults())
}

// Stop ends the loads of faults, and the lab.
func (l *Lab) Stop() error { return errors.Join(l.endLoads(nil), l.Lab.Stop()) }

// Fault is a mistake that a lab can make, for learning and for tests. Faults of a node are made at
// rome/node1, faults of a gateway at rome's unless the name says milan.
type Fault struct {
	Name    string   `json:"name"`    // what culvert-lab break takes
	Does    string   `json:"does"`    // what it does
	Cause   string   `json:"cause"`   // what is wrong, as somebody would search for it
	Remedy  string   `json:"remedy"`  // how to fix it by hand
	Symptom *Symptom `json:"symptom"` // what users notice
	Named   *Named   `json:"named,omitempty"`
	Untold  string   `json:"untold,omitempty"` // why no gateway can name it, or ""

	files  map[string]change // by host, changes of the host's configuration
	off    string            // host whose gateway or node is stopped
	kernel []kernelFault
	load   load
	not    node.Mode // mode without this fault
}

// change changes the configuration of a gateway or node, in a lab whose nodes use a mode.
type change func(config lab.Object, mode node.Mode)

// kernelFault is a change of a host's kernel. Both functions run inside the host;
// do may be called again, and undo when there is nothing to take back.
type kernelFault struct {
	host     string
	do, undo func(l *Lab) error
}

// All returns all faults.
func All() []Fault { return slices.Clone(faults) }

func findFault(name string) (*Fault, error) {
	i := slices.IndexFunc(faults, func(f Fault) bool { return f.Name == name })
	if i < 0 {
		var names []string
		for _, f := range faults {
			names = append(names, f.Name)
		}
		if near := configfile.Closest(name, names); near != "" {
			return nil, fmt.Errorf("no fault %q; did you mean %s?", name, near)
		}
		return nil, fmt.Errorf("no fault %q; culvert-lab break lists them", name)
	}
	return &faults[i], nil
}

// Broken returns the names of the current faults, in the order in which they were made.
func (l *Lab) Broken() []string {
	names := []string{}
	for _, f := range l.broken {
		names = append(names, f.Name)
	}
	return names
}

// Break makes faults, in addition to existing ones. It returns when the affected gateways and nodes
// run with them.
func (l *Lab) Break(ctx context.Context, names ...string) (err error) {
	defer step.Catch(&err)
	broken := slices.Clone(l.broken)
	for _, name := range names {
		f := step.Must(findFault(name))
		if f.not == l.Options.Mode {
			return fmt.Errorf("%s: there is no such fault with nodes %s; start the lab with another --mode", name,
				f.not)
		}
		if !slices.Contains(broken, f) {
			broken = append(broken, f)
		}
	}
	return l.setBroken(ctx, broken)
}

// Mend removes faults; all of them if none is named.
func (l *Lab) Mend(ctx context.Context, names ...string) (err error) {
	defer step.Catch(&err)
	if len(names) == 0 {
		return l.setBroken(ctx, nil)
	}
	broken := slices.Clone(l.broken)
	for _, name := range names {
		f := step.Must(findFault(name))
		i := slices.Index(broken, f)
		if i < 0 {
			return fmt.Errorf("%s: the lab does not have this fault; culvert-lab status lists those it has", name)
		}
		broken = slices.Delete(broken, i, i+1)
	}
	return l.setBroken(ctx, broken)
}

// setBroken makes these the lab's faults. One that fails does not stop the rest.
func (l *Lab) setBroken(ctx context.Context, broken []*Fault) error {
	ctx, cancel := context.WithTimeout(ctx, lab.StartTimeout)
	defer cancel()
	before := l.broken
	l.broken = broken
	var errs []error
	for _, f := range before {
		if !slices.Contains(broken, f) {
			errs = append(errs, l.eachKernel(f, false))
		}
	}
	errs = append(errs, l.endLoads(broken))
	restart, err := l.rewriteConfigs()
	errs = append(errs, err)
	for _, f := range slices.Concat(before, broken) {
		if f.off != "" && slices.Contains(before, f) != slices.Contains(broken, f) {
			restart = append(restart, f.off)
		}
	}
	errs = append(errs, l.restart(ctx, restart))
	l.beginLoads()
	return errors.Join(errs...)
}

// eachKernel makes a fault's changes in kernels, or removes them in reverse order.
func (l *Lab) eachKernel(f *Fault, do bool) error {
	changes := slices.Clone(f.kernel)
	if !do {
		slices.Reverse(changes)
	}
	for _, k := range changes {
		if !do {
			k = opposite(k)
		}
		if err := l.Host(k.host).Do(func() error { return k.do(l) }); err != nil {
			return fmt.Errorf("%s: %s: %w", f.Name, k.host, err)
		}
	}
	return nil
}

// edit applies the faults' changes to a host's configuration.
func (l *Lab) edit(host string, config lab.Object) lab.Object {
	for _, f := range l.broken {
		if change := f.files[host]; change != nil {
			change(config, l.Options.Mode)
		}
	}
	return config
}

// marshal writes a configuration as yaml.Marshal does. Faults are written with IPv4 addresses,
// which it replaces in a lab without IPv4.
func (l *Lab) marshal(config lab.Object) ([]byte, error) {
	text, err := json.Marshal(config)
	if err != nil {
		return nil, err
	}
	return yaml.JSONToYAML([]byte(plan.AsIPv6(string(text), l.Options.Inside == lab.IPv6, l.Options.Outside6)))
}

// rewriteConfigs writes the configurations that differ from their files, and returns their hosts.
func (l *Lab) rewriteConfigs() (changed []string, err error) {
	defer step.Catch(&err)
	for host, config := range l.Configs() {
		text := step.Must(l.marshal(l.edit(host, config)))
		cluster, name, _ := strings.Cut(host, "/")
		if old := step.Must(os.ReadFile(l.Path(cluster, name+".yaml"))); bytes.Equal(old, text) {
			continue
		}
		step.Try(l.Write(cluster, name+".yaml", text))
		changed = append(changed, host)
	}
	return changed, nil
}

// restart ends the gateways and nodes of hosts, and starts those again that no fault stops.
// Gateways are restarted together, the server first: a client notices only after a while that its
// server has forgotten their session.
func (l *Lab) restart(ctx context.Context, hosts []string) error {
	if slices.ContainsFunc(hosts, plan.IsGateway) {
		both := []string{plan.V4[1].Name + "/gateway", plan.V4[0].Name + "/gateway"}
		hosts = append(both, slices.DeleteFunc(hosts, func(name string) bool { return slices.Contains(both, name) })...)
	}
	var errs []error
	for _, name := range hosts {
		errs = append(errs, l.StopProcess(l.Process(name)))
	}
	for _, name := range hosts {
		if l.OffBy(name) == nil {
			errs = append(errs, l.StartAgain(ctx, name))
		}
	}
	return errors.Join(append(errs, l.remakeKernelFaults())...)
}

// OffBy returns the fault that stops a host's process, or nil.
func (l *Lab) OffBy(host string) *Fault {
	i := slices.IndexFunc(l.broken, func(f *Fault) bool { return f.off == host })
	if i < 0 {
		return nil
	}
	return l.broken[i]
}

// remakeKernelFaults makes the kernels' faults again, including those that disappeared with the
// link of a restarted node.
func (l *Lab) remakeKernelFaults() error {
	var errs []error
	for _, f := range l.broken {
		errs = append(errs, l.eachKernel(f, true))
	}
	return errors.Join(errs...)
}
