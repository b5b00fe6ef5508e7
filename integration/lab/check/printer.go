package check

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"culvert/gateway/node"
	"culvert/integration/lab"
	"culvert/integration/lab/holder"
)

// Style is the printer's format.
type Style int

// Table has one line for each check, readable for scripts. Brief has one line per lab, and what a
// newcomer wants to know; Verbose has that and the table.
const (
	Table Style = iota
	JSON        // one object a line
	Brief
	Verbose
)

// printer prints results as they come.
type printer struct {
	out      io.Writer
	o        *Options
	terminal bool // out is a terminal: current work is shown, and erased
	plan     []plannedLab
	began    time.Time

	labs, checks, failed int
	ended                int // labs
	endedAt              time.Time

	// Of the current lab.
	options              lab.Options
	labBegan             time.Time
	checksNow, failedNow int
	figures              map[string]string // of each check, the first
}

const (
	nameWidth   = 18 // columns of a check's name
	pathWidth   = 31 // columns of its path
	figureWidth = 44 // columns of its figure: 100 with the result and the gaps
	logLines    = 15 // of each process, when a check has failed
)

func newPrinter(out io.Writer, o *Options, plan []plannedLab) *printer {
	p := &printer{out: out, o: o, plan: plan, began: time.Now()}
	if f, ok := out.(*os.File); ok && o.Style == Brief {
		p.terminal = holder.IsTerminal(int(f.Fd()))
	}
	if o.Style == Brief || o.Style == Verbose {
		fmt.Fprint(out, picture)
	}
	if o.Style == Table || o.Style == Verbose {
		for _, line := range p.leftOut() {
			fmt.Fprintln(out, line)
		}
	}
	return p
}

// leftOut reports labs that cannot run here.
func (p *printer) leftOut() (lines []string) {
	for _, mode := range []node.Mode{node.Geneve, node.VXLAN, node.TUN} {
		if err := p.o.Missing[mode]; err != nil {
			lines = append(lines, fmt.Sprintf("left out: %d labs with nodes %s, which this machine refuses: %v",
				len(p.o.labs(mode)), mode, err))
		}
	}
	return lines
}

func (p *printer) lab(o lab.Options) {
	p.options, p.labBegan, p.checksNow, p.failedNow = o, time.Now(), 0, 0
	p.figures = make(map[string]string)
	p.labs++
	if p.o.Style == Table || p.o.Style == Verbose {
		fmt.Fprintln(p.out, o)
	}
}

func (p *printer) run(ctx context.Context, c lab.Check) {
	p.working(c)
	checkCtx, cancel := context.WithTimeout(ctx, lab.CheckTimeout)
	defer cancel()
	began := time.Now()
	figure, err := c.Run(checkCtx)
	if err != nil && errors.Is(context.Cause(ctx), context.Canceled) {
		return // the interrupting user knows
	}
	if err != nil && checkCtx.Err() != nil {
		err = fmt.Errorf("%w: %w", context.Cause(checkCtx), err)
	}
	r := Result{Lab: p.options.String(), Check: c.Name, Path: c.Path, Figure: figure, OK: err == nil,
		Seconds: time.Since(began).Seconds()}
	p.checks++
	p.checksNow++
	if _, ok := p.figures[c.Name]; !ok {
		p.figures[c.Name] = figure
	}
	if err != nil {
		r.Error, r.Figure = err.Error(), ""
		p.failed++
		p.failedNow++
	}
	p.result(&r)
}

func (p *printer) result(r *Result) {
	if p.o.Style == JSON {
		json.NewEncoder(p.out).Encode(r)
		return
	}
	mark := "ok  "
	if !r.OK {
		mark = "FAIL"
	} else if p.o.Style == Brief {
		return
	}
	p.clear()
	fmt.Fprintln(p.out, strings.TrimRight(fmt.Sprintf("%s %-*s %-*s %s", mark, nameWidth, r.Check, pathWidth, r.Path,
		r.Figure), " "))
	for line := range strings.Lines(r.Error) {
		fmt.Fprintf(p.out, "       %s\n", strings.TrimRight(line, "\n"))
	}
}

// labEnds summarises the lab.
func (p *printer) labEnds() {
	p.ended, p.endedAt = p.labs, time.Now()
	if p.o.Style != Brief {
		return
	}
	p.clear()
	mark := "ok  "
	if p.failedNow > 0 {
		mark = "FAIL"
	}
	fmt.Fprintf(p.out, "%s %-*s %2d checks  %-*s %3.0f s%s\n", mark, briefName, brief(p.options), p.checksNow,
		briefFigure, p.headline(),
		time.Since(p.labBegan).Seconds(), p.left())
}

// drops shows what the gateways have dropped, and why.
func (p *printer) drops(ctx context.Context, l *lab.Lab) {
	if p.o.Style == JSON {
		return
	}
	fmt.Fprint(p.out, "dropped meanwhile:\n", l.Dropped(ctx))
}

// logs shows the end of every process's log.
func (p *printer) logs(l *lab.Lab) {
	if p.o.Style == JSON || l == nil {
		return
	}
	for _, process := range l.Processes {
		fmt.Fprintf(p.out, "  %s, end of %s:\n", process.Name(), process.Log)
		for line := range strings.Lines(lab.Tail(process.Log, logLines)) {
			fmt.Fprintf(p.out, "    | %s\n", strings.TrimRight(line, "\n"))
		}
	}
}

func (p *printer) finish(dir string) error {
	if p.o.Style != JSON {
		fmt.Fprintf(p.out, "%d checks in %d labs, %d failed, %.0f s\n", p.checks, p.labs, p.failed,
			time.Since(p.began).Seconds())
	}
	if p.o.Style == Brief {
		for _, line := range p.leftOut() {
			fmt.Fprintln(p.out, line)
		}
	}
	if p.failed > 0 {
		return holder.KeepLogs(dir, ErrFailed)
	}
	if p.o.Style == Brief || p.o.Style == Verbose {
		fmt.Fprint(p.out, next(os.Args[0]))
	}
	return nil
}
