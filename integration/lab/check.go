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

// Check is one promise, tried between two hosts.
type Check struct {
	Name string // what is promised
	Path string // between whom

	// Run returns a measured figure, and an error that says what was expected
	// and what was seen.
	Run func(ctx context.Context) (figure string, err error)
}

// Result is what came of a check.
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

// CheckOptions say what to check, and how to tell of it.
type CheckOptions struct {
	Modes    []node.Mode         // each in labs of its own
	Missing  map[node.Mode]error // modes that were wanted too, and why they are not there
	Offloads []bool              // each in labs of its own
	Labs     []string            // of LabNames
	Sandbox  Sandbox             // around the gateways of all labs
	Faults   bool                // make and mend each fault there is, and check nothing else
	Named    []string            // make these faults, or all, wait until a status names them, and check nothing else
	Short    bool                // for who waits: services in one mode, and no bad files
	Style    Style
}

// ErrFailed means that a check failed; what and why was printed.
var ErrFailed = errors.New("lab check: not all checks passed")

// ErrInterrupted means that somebody wanted no more of a lab.
var ErrInterrupted = errors.New("lab: interrupted; nothing of it is left")

// plannedLab is a lab that is to be checked.
type plannedLab struct {
	options Options
	checks  func(*Lab) []Check
	seconds float64 // that its checks take on two CPUs, about
}

// Kinds of labs.
const (
	ipv4Labs    = "ipv4"
	dualLabs    = "dual"       // both families inside
	keepLabs    = "restart"    // gateways are restarted
	inside6Labs = "v6-inside"  // IPv6 alone inside
	outer6Labs  = "v6-outside" // both inside, tunnels over IPv6
)

// LabNames are the names of the kinds of labs that there are.
func LabNames() []string { return []string{ipv4Labs, dualLabs, keepLabs, inside6Labs, outer6Labs} }

// sixLabs are the kinds of labs with IPv6, as they differ from those with IPv4 alone.
var sixLabs = []struct {
	name string
	of   Options
}{{dualLabs, Options{Inside: IPv4AndIPv6}}, {inside6Labs, Options{Inside: IPv6}}, {outer6Labs, Options{Inside: IPv4AndIPv6, Outside6: true}}}

// labs returns the labs of a mode.
func (o *CheckOptions) labs(mode node.Mode) (all []plannedLab) {
	if slices.Contains(o.Labs, ipv4Labs) {
		all = o.ipv4Labs(mode)
	}
	if o.Faults {
		return append(all, o.fault6Labs(mode)...)
	}
	// What is about the family, or about what gateways remember, is not about modes and frames.
	if len(o.Named) > 0 || mode != onceMode(o.Modes) {
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
		if o.Sandbox.Runsc == "" {
			add(Attacks(mode, o.Offloads[0]), attackChecks, 30) // over IPv6, inside and outside
		}
	}
	if o.Sandbox.Runsc == "" && slices.Contains(o.Labs, keepLabs) {
		seconds := 100.0
		if o.Short {
			seconds = 5
		}
		all = append(all, plannedLab{Keep(Standard(mode, o.Offloads[0])), keepChecks(o.Short), seconds})
	}
	return all
}

// fault6Labs are those in which faults are made over IPv6, which there is alone inside.
func (o *CheckOptions) fault6Labs(mode node.Mode) (all []plannedLab) {
	for _, offloads := range o.Offloads {
		for _, kind := range []string{inside6Labs, outer6Labs} {
			if slices.Contains(o.Labs, kind) {
				of := Standard(mode, offloads)
				of.Inside, of.Outside6 = IPv6, kind == outer6Labs
				all = append(all, plannedLab{of, faultChecks, 20})
			}
		}
	}
	return all
}

func (o *CheckOptions) ipv4Labs(mode node.Mode) (all []plannedLab) {
	for _, offloads := range o.Offloads {
		slow := 1.0 // compared to super-frames
		if !offloads || mode == node.TUN {
			slow = 2
		}
		if len(o.Named) > 0 {
			all = append(all, plannedLab{Standard(mode, offloads), namedChecks(o.Named), 10 * float64(len(o.Named))})
			continue
		}
		if o.Faults {
			all = append(all, plannedLab{Standard(mode, offloads), faultChecks, 20})
			continue
		}
		all = append(all, plannedLab{Standard(mode, offloads), standardChecks, 6 * slow}, plannedLab{UnequalMTU(mode, offloads), mtuChecks, 2 * slow})
		once := offloads && mode == onceMode(o.Modes)
		switch { // what is about addresses is not about sizes
		case once && !o.Short:
			all = append(all, plannedLab{Outside(mode, offloads), refusedChecks, 45})
		case once || offloads && !o.Short:
			all = append(all, plannedLab{Outside(mode, offloads), outsideChecks, 25})
		}
		// Gateways are restarted for each attack, and their memory is watched from outside.
		if once && o.Sandbox.Runsc == "" {
			all = append(all, plannedLab{Attacks(mode, offloads), attackChecks, 30})
		}
	}
	return all
}

// RunChecks builds one lab after another below dir, runs their checks and tells of
// them on out.
func RunChecks(ctx context.Context, dir string, o CheckOptions, out io.Writer) error {
	var labs []plannedLab
	for _, mode := range o.Modes {
		labs = append(labs, o.labs(mode)...)
	}
	p := newPrinter(out, &o, labs)
	for i, l := range labs {
		l.options.Sandbox = o.Sandbox
		runLab(ctx, filepath.Join(dir, fmt.Sprintf("lab%d", i+1)), l.options, l.checks, p)
		if ctx.Err() != nil {
			p.clear()
			return ErrInterrupted
		}
	}
	return p.finish(dir)
}

// runLab runs the checks of one lab until ctx ends. Whatever goes wrong is a failed
// check.
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
		l.Stop() // nobody wants to know any more
		return
	case p.failedNow > 0 && p.checksNow == 1:
		l.Stop() // what it complains about comes from the failed start
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
		os.RemoveAll(dir) // if not here, it goes with the holder's folder
	}
}

// whileRunning returns a context that ends when a gateway or node does: the
// checks that follow would all wait in vain.
func (l *Lab) whileRunning(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	if l.options.Attacks {
		return ctx, func() { cancel(nil) } // each check has gateways of its own and looks after them
	}
	for _, p := range l.processes {
		go func() {
			select {
			case <-p.ended:
				if p.stopped.Load() {
					return // a fault, or a restart
				}
				cancel(fmt.Errorf("%s ended by itself (%w)", p.Name(), exitError(p.err)))
			case <-ctx.Done():
			}
		}()
	}
	return ctx, func() { cancel(nil) }
}
