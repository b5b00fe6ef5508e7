package check

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"time"

	"culvert/gateway/node"
	"culvert/integration/lab"
	"culvert/integration/lab/attack"
	"culvert/integration/lab/fault"
	"culvert/integration/lab/holder"
)

// Result is the outcome of a check.
type Result struct {
	Lab     string  `json:"lab"`
	Check   string  `json:"check"`
	Path    string  `json:"path"`
	Figure  string  `json:"figure"`
	OK      bool    `json:"ok"`
	Error   string  `json:"error,omitempty"`
	Seconds float64 `json:"seconds"`
}

// Options select what to check, and how to report it.
type Options struct {
	Culvert  string              // absolute path of the program that is checked
	Modes    []node.Mode         // each in separate labs
	Missing  map[node.Mode]error // modes that were requested but are unavailable, and why
	Offloads []bool              // each in separate labs
	Labs     []string            // of LabNames
	Sandbox  lab.Sandbox         // around the gateways of all labs
	Faults   bool                // only make and mend each fault
	Named    []string            // only make these faults, or all, and wait until a status names them
	Short    bool                // skips services in all but one mode, and invalid files
	Style    Style
}

// ErrFailed means that a check failed; the reason was printed.
var ErrFailed = errors.New("check: not all checks passed")

// plannedLab is a lab to be checked.
type plannedLab struct {
	options lab.Options
	checks  func(*lab.Lab) []lab.Check
	seconds float64 // approximate duration of its checks on two CPUs
}

// Kinds of labs.
const (
	ipv4Labs    = "ipv4"
	dualLabs    = "dual"       // both families inside
	keepLabs    = "restart"    // gateways are restarted
	attackLabs  = "attacks"    // gateways, nodes and services are flooded
	inside6Labs = "v6-inside"  // IPv6 alone inside
	outer6Labs  = "v6-outside" // both inside, tunnels over IPv6
)

// LabNames are the names of the kinds of labs.
func LabNames() []string {
	return []string{ipv4Labs, dualLabs, keepLabs, attackLabs, inside6Labs, outer6Labs}
}

// sixLabs are the kinds of labs with IPv6, and how they differ from IPv4-only ones.
var sixLabs = []struct {
	name string
	of   lab.Options
}{{dualLabs, lab.Options{Inside: lab.IPv4AndIPv6}}, {inside6Labs, lab.Options{Inside: lab.IPv6}},
	{outer6Labs, lab.Options{Inside: lab.IPv4AndIPv6, Outside6: true}}}

// labs returns the labs of a mode.
func (o *Options) labs(mode node.Mode) (all []plannedLab) {
	if o.Faults || len(o.Named) > 0 {
		return o.faultLabs(mode)
	}
	if slices.Contains(o.Labs, ipv4Labs) {
		all = o.ipv4Labs(mode)
	}
	// Checks about the family, or about what gateways remember, do not depend on modes and frames.
	if mode != onceMode(o.Modes) {
		return all
	}
	for _, kind := range sixLabs {
		add := func(of lab.Options, checks func(*lab.Lab) []lab.Check, seconds float64) {
			of.Inside, of.Outside6 = kind.of.Inside, kind.of.Outside6
			all = append(all, plannedLab{of, checks, seconds})
		}
		if !slices.Contains(o.Labs, kind.name) {
			continue
		}
		add(lab.Standard(mode, o.Offloads[0]), lab.StandardChecks, 7)
		if o.Short {
			continue
		}
		add(lab.UnequalMTU(mode, o.Offloads[0]), lab.MTUChecks, 3)
		if kind.name != outer6Labs {
			add(lab.Outside(mode, o.Offloads[0]), lab.OutsideChecks, 25)
			continue
		}
		add(lab.Outside(mode, o.Offloads[0]), lab.RefusedChecks, 45)
	}
	if o.Sandbox.Runsc == "" && slices.Contains(o.Labs, keepLabs) {
		seconds := 100.0
		if o.Short {
			seconds = 5
		}
		all = append(all, plannedLab{lab.Keep(lab.Standard(mode, o.Offloads[0])), lab.KeepChecks(o.Short), seconds})
	}
	if slices.Contains(o.Labs, attackLabs) {
		all = append(all, o.attackLabs(mode)...)
	}
	return all
}

// attackLabs are labs whose gateways are restarted for each attack, and whose memory is observed
// from outside.
func (o *Options) attackLabs(mode node.Mode) (all []plannedLab) {
	if o.Sandbox.Runsc != "" {
		return nil
	}
	if slices.Contains(o.Offloads, true) {
		all = append(all, plannedLab{lab.Attacks(mode, true), attack.Checks, 80})
	}
	if !o.Short {
		of := lab.Attacks(mode, o.Offloads[0])
		of.Inside, of.Outside6 = lab.IPv4AndIPv6, true
		all = append(all, plannedLab{of, attack.Checks, 80})
	}
	return all
}

// faultLabs are labs in which faults are made, over one family inside.
func (o *Options) faultLabs(mode node.Mode) (all []plannedLab) {
	checks, seconds := fault.Checks, 20.0
	if len(o.Named) > 0 {
		checks, seconds = fault.NamedChecks(o.Named), 10*float64(len(o.Named))
	}
	for _, kind := range []string{ipv4Labs, inside6Labs, outer6Labs} {
		for _, offloads := range o.Offloads {
			of := lab.Standard(mode, offloads)
			if kind != ipv4Labs {
				of.Inside, of.Outside6 = lab.IPv6, kind == outer6Labs
			}
			if slices.Contains(o.Labs, kind) {
				all = append(all, plannedLab{of, checks, seconds})
			}
		}
	}
	return all
}

func (o *Options) ipv4Labs(mode node.Mode) (all []plannedLab) {
	for _, offloads := range o.Offloads {
		slow := 1.0 // compared with super-frames
		if !offloads || mode == node.TUN {
			slow = 2
		}
		all = append(all, plannedLab{lab.Standard(mode, offloads), lab.StandardChecks, 6 * slow},
			plannedLab{lab.UnequalMTU(mode, offloads), lab.MTUChecks, 2 * slow})
		once := offloads && mode == onceMode(o.Modes)
		switch { // checks about addresses do not depend on sizes
		case once && !o.Short:
			all = append(all, plannedLab{lab.Outside(mode, offloads), lab.RefusedChecks, 45})
		case once || offloads && !o.Short:
			all = append(all, plannedLab{lab.Outside(mode, offloads), lab.OutsideChecks, 25})
		}
	}
	return all
}

// Run builds one lab after another below dir, runs their checks and reports to out.
func Run(ctx context.Context, dir string, o Options, out io.Writer) error {
	var labs []plannedLab
	for _, mode := range o.Modes {
		labs = append(labs, o.labs(mode)...)
	}
	p := newPrinter(out, &o, labs)
	for i, l := range labs {
		l.options.Culvert, l.options.Sandbox = o.Culvert, o.Sandbox
		runLab(ctx, filepath.Join(dir, fmt.Sprintf("lab%d", i+1)), l.options, l.checks, p)
		if ctx.Err() != nil {
			p.clear()
			return holder.ErrInterrupted
		}
	}
	return p.finish(dir)
}

// runLab runs the checks of one lab until ctx ends. Any error is a failed check.
func runLab(ctx context.Context, dir string, o lab.Options, checks func(*lab.Lab) []lab.Check, p *printer) {
	p.lab(o)
	var l *lab.Lab
	p.run(ctx, lab.Check{Name: "start", Path: "2 gateways, 4 nodes", Run: func(ctx context.Context) (string, error) {
		began := time.Now()
		var err error
		l, err = lab.Start(ctx, dir, o)
		return fmt.Sprintf("ready in %d ms", time.Since(began).Milliseconds()), err
	}})
	if p.failedNow == 0 {
		checkCtx, cancel := l.WhileRunning(ctx)
		for _, c := range checks(l) {
			p.run(checkCtx, c)
			if checkCtx.Err() != nil {
				break
			}
		}
		cancel()
	}
	switch {
	case ctx.Err() != nil:
		l.Stop() // the user has interrupted
		return
	case p.failedNow > 0 && p.checksNow == 1:
		l.Stop() // its errors come from the failed start
	case p.failedNow > 0:
		p.drops(ctx, l)
		fallthrough
	default:
		p.run(ctx, lab.Check{Name: "stop", Path: "2 gateways, 4 nodes", Run: func(context.Context) (string, error) {
			began := time.Now()
			err := l.Stop()
			return fmt.Sprintf("ended in %d ms, exit status 0", time.Since(began).Milliseconds()), err
		}})
	}
	p.labEnds()
	if p.failedNow > 0 {
		p.logs(l)
	} else {
		os.RemoveAll(dir) // if it fails, the holder's folder is removed later
	}
}

// onceMode selects one of the modes for checks that concern only the gateways, which are the same
// in all modes.
func onceMode(modes []node.Mode) node.Mode {
	if slices.Contains(modes, node.VXLAN) {
		return node.VXLAN
	}
	return modes[0]
}
