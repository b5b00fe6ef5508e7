package lab

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
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

// CheckOptions say what to check.
type CheckOptions struct {
	Modes    []node.Mode // each in labs of its own
	Offloads []bool      // each in labs of its own
	Sandbox  Sandbox     // around the gateways of all labs
	Faults   bool        // make and mend each fault there is, and check nothing else
	JSON     bool        // one object a line instead of a table
}

// ErrFailed means that a check failed; what and why was printed.
var ErrFailed = errors.New("lab check: not all checks passed")

// RunChecks builds one lab after another below dir, runs their checks and prints
// a line for each to out.
func RunChecks(ctx context.Context, dir string, o CheckOptions, out io.Writer) error {
	p := printer{out: out, json: o.JSON, began: time.Now()}
	for _, mode := range o.Modes {
		for _, offloads := range o.Offloads {
			for _, l := range []struct {
				options Options
				checks  func(*Lab) []Check
				skip    bool
			}{
				{Standard(mode, offloads), faultChecks, !o.Faults},
				{Standard(mode, offloads), standardChecks, o.Faults},
				{UnequalMTU(mode, offloads), mtuChecks, o.Faults},
				{Outside(mode, offloads), outsideChecks, !offloads || o.Faults}, // about addresses, not about sizes
				// Its gateways are restarted for each attack, and their memory is watched from outside.
				{Attacks(mode, offloads), attackChecks, o.Faults || !offloads || mode != attackMode(o.Modes) || o.Sandbox.Runsc != ""},
			} {
				if l.skip {
					continue
				}
				l.options.Sandbox = o.Sandbox
				name := fmt.Sprintf("lab%d", p.labs)
				if err := runLab(ctx, filepath.Join(dir, name), l.options, l.checks, &p); err != nil {
					return err
				}
			}
		}
	}
	return p.finish(dir)
}

// runLab runs the checks of one lab. Only the end of ctx is an error: whatever
// else goes wrong is a failed check.
func runLab(ctx context.Context, dir string, o Options, checks func(*Lab) []Check, p *printer) error {
	p.lab(o.String())
	var l *Lab
	p.run(ctx, Check{Name: "start", Path: "2 gateways, 4 nodes", Run: func(ctx context.Context) (string, error) {
		began := time.Now()
		var err error
		l, err = Start(ctx, dir, o)
		return fmt.Sprintf("ready in %d ms", time.Since(began).Milliseconds()), err
	}})
	if p.failedNow > 0 {
		l.Stop() // what it complains about comes from the failed start
	} else {
		checkCtx, cancel := l.whileRunning(ctx)
		for _, c := range checks(l) {
			p.run(checkCtx, c)
			if checkCtx.Err() != nil {
				break
			}
		}
		if p.failedNow > 0 {
			p.drops(ctx, l)
		}
		cancel()
		p.run(context.WithoutCancel(ctx), Check{Name: "stop", Path: "2 gateways, 4 nodes", Run: func(context.Context) (string, error) {
			began := time.Now()
			err := l.Stop()
			return fmt.Sprintf("ended in %d ms, exit status 0", time.Since(began).Milliseconds()), err
		}})
	}
	if p.failedNow > 0 {
		p.logs(l)
	} else if err := os.RemoveAll(dir); err != nil {
		return err
	}
	return context.Cause(ctx)
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

// printer prints results as they come.
type printer struct {
	out       io.Writer
	json      bool
	began     time.Time
	labName   string
	labs      int
	checks    int
	failedNow int // in the lab that is running
	failed    int
}

const (
	nameWidth   = 18 // columns of a check's name
	pathWidth   = 31 // columns of its path
	figureWidth = 44 // columns of its figure: 100 with the result and the gaps
	logLines    = 15 // of each process, when a check has failed
)

func (p *printer) lab(name string) {
	p.labName, p.failedNow = name, 0
	p.labs++
	if !p.json {
		fmt.Fprintf(p.out, "%s\n", name)
	}
}

func (p *printer) run(ctx context.Context, c Check) {
	ctx, cancel := context.WithTimeout(ctx, checkTimeout)
	defer cancel()
	began := time.Now()
	figure, err := c.Run(ctx)
	if err != nil && ctx.Err() != nil {
		err = fmt.Errorf("%w: %w", context.Cause(ctx), err)
	}
	r := Result{Lab: p.labName, Check: c.Name, Path: c.Path, Figure: figure, OK: err == nil, Seconds: time.Since(began).Seconds()}
	p.checks++
	if err != nil {
		r.Error, r.Figure = err.Error(), ""
		p.failed++
		p.failedNow++
	}
	if p.json {
		json.NewEncoder(p.out).Encode(r)
		return
	}
	mark := "ok  "
	if !r.OK {
		mark = "FAIL"
	}
	fmt.Fprintln(p.out, strings.TrimRight(fmt.Sprintf("%s %-*s %-*s %s", mark, nameWidth, c.Name, pathWidth, c.Path, r.Figure), " "))
	for line := range strings.Lines(r.Error) {
		fmt.Fprintf(p.out, "       %s\n", strings.TrimRight(line, "\n"))
	}
}

// drops shows what the gateways have dropped, and why.
func (p *printer) drops(ctx context.Context, l *Lab) {
	if p.json {
		return
	}
	for _, process := range l.processes {
		if process.Args[0] != "gateway" {
			continue
		}
		text, err := gatewayGet(ctx, process.Host, "/metrics")
		if err != nil {
			fmt.Fprintf(p.out, "  %s: %v\n", process.Name(), err)
			continue
		}
		for line := range strings.Lines(text) {
			if strings.HasPrefix(line, "culvert_dropped_packets_total") && !strings.HasSuffix(line, " 0\n") {
				fmt.Fprintf(p.out, "  %s: %s", process.Host.Name, line)
			}
		}
	}
}

// logs shows the end of every process's log.
func (p *printer) logs(l *Lab) {
	if p.json || l == nil {
		return
	}
	for _, process := range l.processes {
		fmt.Fprintf(p.out, "  %s, end of %s:\n", process.Name(), process.Log)
		for line := range strings.Lines(tail(process.Log, logLines)) {
			fmt.Fprintf(p.out, "    | %s\n", strings.TrimRight(line, "\n"))
		}
	}
}

func (p *printer) finish(dir string) error {
	if !p.json {
		fmt.Fprintf(p.out, "%d checks in %d labs, %d failed, %.0f s\n", p.checks, p.labs, p.failed, time.Since(p.began).Seconds())
	}
	if p.failed == 0 {
		return nil
	}
	if err := os.WriteFile(filepath.Join(dir, keepFile), nil, 0o600); err != nil {
		return err
	}
	return fmt.Errorf("%w; configurations and logs are in %s until `culvert lab down`", ErrFailed, dir)
}
