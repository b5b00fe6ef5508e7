package lab

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
)

// Check is one promise, tested between two hosts.
type Check struct {
	Name string // the promise
	Path string // the two hosts

	// Run returns a measured figure, and an error with the expectation and the observation.
	Run func(ctx context.Context) (figure string, err error)
}

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

// checkTimeout bounds one check.
const checkTimeout = 2 * time.Minute

// CheckOptions select what to check, and how to report it.
type CheckOptions struct {
	Culvert  string              // absolute path of the program that is checked
	Modes    []node.Mode         // each in separate labs
	Missing  map[node.Mode]error // modes that were requested but are unavailable, and why
	Offloads []bool              // each in separate labs
	Labs     []string            // of LabNames
	Sandbox  Sandbox             // around the gateways of all labs
	Faults   bool                // only make and mend each fault
	Named    []string            // only make these faults, or all, and wait until a status names them
	Short    bool                // skips services in all but one mode, and invalid files
	Style    Style
}

// ErrFailed means that a check failed; the reason was printed.
var ErrFailed = errors.New("check: not all checks passed")

// ErrInterrupted means that the user interrupted a lab.
var ErrInterrupted = errors.New("interrupted; nothing of the lab is left")

// plannedLab is a lab to be checked.
type plannedLab struct {
	options Options
	checks  func(*Lab) []Check
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
	of   Options
}{{dualLabs, Options{Inside: IPv4AndIPv6}}, {inside6Labs, Options{Inside: IPv6}},
	{outer6Labs, Options{Inside: IPv4AndIPv6, Outside6: true}}}

// labs returns the labs of a mode.
func (o *CheckOptions) labs(mode node.Mode) (all []plannedLab) {
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
		add := func(of Options, checks func(*Lab) []Check, seconds float64) {
			of.Inside, of.Outside6 = kind.of.Inside, kind.of.Outside6
			all = append(all, plannedLab{of, checks, seconds})
		}
		if !slices.Contains(o.Labs, kind.name) {
			continue
		}
		add(Standard(mode, o.Offloads[0]), standardChecks, 7)
		if o.Short {
			continue
		}
		add(UnequalMTU(mode, o.Offloads[0]), mtuChecks, 3)
		if kind.name != outer6Labs {
			add(Outside(mode, o.Offloads[0]), outsideChecks, 25)
			continue
		}
		add(Outside(mode, o.Offloads[0]), refusedChecks, 45)
	}
	if o.Sandbox.Runsc == "" && slices.Contains(o.Labs, keepLabs) {
		seconds := 100.0
		if o.Short {
			seconds = 5
		}
		all = append(all, plannedLab{Keep(Standard(mode, o.Offloads[0])), keepChecks(o.Short), seconds})
	}
	if slices.Contains(o.Labs, attackLabs) {
		all = append(all, o.attackLabs(mode)...)
	}
	return all
}

// attackLabs are labs whose gateways are restarted for each attack, and whose memory is observed
// from outside.
func (o *CheckOptions) attackLabs(mode node.Mode) (all []plannedLab) {
	if o.Sandbox.Runsc != "" {
		return nil
	}
	if slices.Contains(o.Offloads, true) {
		all = append(all, plannedLab{Attacks(mode, true), attackChecks, 80})
	}
	if !o.Short {
		of := Attacks(mode, o.Offloads[0])
		of.Inside, of.Outside6 = IPv4AndIPv6, true
		all = append(all, plannedLab{of, attackChecks, 80})
	}
	return all
}

// faultLabs are labs in which faults are made, over one family inside.
func (o *CheckOptions) faultLabs(mode node.Mode) (all []plannedLab) {
	checks, seconds := faultChecks, 20.0
	if len(o.Named) > 0 {
		checks, seconds = namedChecks(o.Named), 10*float64(len(o.Named))
	}
	for _, kind := range []string{ipv4Labs, inside6Labs, outer6Labs} {
		for _, offloads := range o.Offloads {
			of := Standard(mode, offloads)
			if kind != ipv4Labs {
				of.Inside, of.Outside6 = IPv6, kind == outer6Labs
			}
			if slices.Contains(o.Labs, kind) {
				all = append(all, plannedLab{of, checks, seconds})
			}
		}
	}
	return all
}

func (o *CheckOptions) ipv4Labs(mode node.Mode) (all []plannedLab) {
	for _, offloads := range o.Offloads {
		slow := 1.0 // compared with super-frames
		if !offloads || mode == node.TUN {
			slow = 2
		}
		all = append(all, plannedLab{Standard(mode, offloads), standardChecks, 6 * slow},
			plannedLab{UnequalMTU(mode, offloads), mtuChecks, 2 * slow})
		once := offloads && mode == onceMode(o.Modes)
		switch { // checks about addresses do not depend on sizes
		case once && !o.Short:
			all = append(all, plannedLab{Outside(mode, offloads), refusedChecks, 45})
		case once || offloads && !o.Short:
			all = append(all, plannedLab{Outside(mode, offloads), outsideChecks, 25})
		}
	}
	return all
}

// RunChecks builds one lab after another below dir, runs their checks and reports to out.
func RunChecks(ctx context.Context, dir string, o CheckOptions, out io.Writer) error {
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
			return ErrInterrupted
		}
	}
	return p.finish(dir)
}

// runLab runs the checks of one lab until ctx ends. Any error is a failed check.
func runLab(ctx context.Context, dir string, o Options, checks func(*Lab) []Check, p *printer) {
	p.lab(o)
	var l *Lab
	p.run(ctx, Check{Name: "start", Path: "2 gateways, 4 nodes", Run: func(ctx context.Context) (string, error) {
		began := time.Now()
		var err error
		l, err = Start(ctx, dir, o)
		return fmt.Sprintf("ready in %d ms", time.Since(began).Milliseconds()), err
	}})
	if p.failedNow == 0 {
		checkCtx, cancel := l.whileRunning(ctx)
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
		p.run(ctx, Check{Name: "stop", Path: "2 gateways, 4 nodes", Run: func(context.Context) (string, error) {
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

// whileRunning returns a context that ends when a gateway or node does, because all following
// checks would wait in vain.
func (l *Lab) whileRunning(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	if l.Options.Attacks {
		return ctx, func() { cancel(nil) } // each check has its own gateways and watches them
	}
	for _, p := range l.processes {
		go func() {
			select {
			case <-p.ended:
				if p.stopped.Load() {
					return // a fault or a restart
				}
				cancel(fmt.Errorf("%s ended by itself (%w)", p.Name(), exitError(p.err)))
			case <-ctx.Done():
			}
		}()
	}
	return ctx, func() { cancel(nil) }
}
