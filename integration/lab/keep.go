package lab

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"culvert/integration/lab/plan"
	"culvert/integration/lab/step"
)

// Keep is a lab that restarts and kills its gateways while connections of all kinds are open.
func Keep(o Options) Options {
	o.Outside, o.Keep = true, true
	return o
}

const (
	flowsOf      = 500 // of each kind
	flowsOfShort = 150 // 600 in all, of which 200 only receive
	youngOf      = 100

	restartPause = time.Second
	killPause    = 2 * time.Second

	savedWithin = 35 * time.Second // the gateway writes each 30 s
)

func KeepChecks(short bool) func(*Lab) []Check {
	return func(l *Lab) []Check {
		n := flowsOf
		if short {
			n = flowsOfShort
		}
		path := fmt.Sprintf("%d connections of each of 4 kinds", n)
		e := l.Pair("rome/pod1", "milan/pod1")
		checks := []Check{
			firstContact(e),
			{"restart", path, func(ctx context.Context) (string, error) { return l.checkRestart(ctx, n) }},
		}
		row, pause := handRow, handPause
		if short {
			row, pause = 1, restartPause // little time may mean few CPUs
		}
		const moved = "peer-moved" // to another port, in a hand-over
		checks = append(checks, Check{"hand-over", path, func(ctx context.Context) (string, error) {
			return l.checkHandOver(ctx, n, row, pause)
		}})
		if runtime.NumCPU() > 1 {
			beside := fmt.Sprintf("%s, %d streams", path, cpusStreams)
			checks = append(checks, Check{"cpus 1, 2, 1", beside, func(ctx context.Context) (string, error) {
				return l.checkCPUs(ctx, n, restartPause)
			}})
		}
		if short {
			return append(checks, l.logCheck(moved))
		}
		between := fmt.Sprintf("%d connections between pods", n)
		return append(checks,
			Check{"kill -9", path, func(ctx context.Context) (string, error) { return l.checkKilled(ctx, n) }},
			l.logCheck(moved),
			// These lose connections, and the log rightly names faults.
			Check{"kill -9, young", fmt.Sprintf("%d of each kind, not saved", youngOf), l.checkYoung},
			Check{"restart, no folder", fmt.Sprintf("%d of each kind", youngOf), l.checkForgotten},
			Check{"restart, kernel parts", between, func(ctx context.Context) (string, error) {
				return l.checkKernelParts(ctx, n, l.StopProcess)
			}},
			Check{"kill -9, kernel parts", between, func(ctx context.Context) (string, error) {
				return l.checkKernelParts(ctx, n, l.killKernelParts)
			}})
	}
}

// besideFlows opens n connections of each kind and two SCTP associations, and calls do. exchange
// sends over the associations, the far end first.
func (l *Lab) besideFlows(ctx context.Context, n int, do func(c *flowSet, exchange func() error) (string, error)) (
	_ string, err error) {
	c, err := newFlowSet(ctx, l, n, false)
	defer func() { err = errors.Join(err, c.end()) }()
	defer step.Catch(&err)
	step.Try(err)
	step.Try(c.measureUndisturbed())
	sctp := step.Must(l.newSCTPPair(&plan.V4))
	defer sctp.close()
	step.Try(sctp.begin())
	return do(c, func() error { return errors.Join(sctp.step(sctpSack), sctp.step(sctpData)) })
}

// measureUndisturbed measures how long connections pause in normal operation.
func (c *flowSet) measureUndisturbed() error {
	time.Sleep(2 * flowPause)
	c.resetLateness()
	s := c.judge(time.Now())
	c.undisturbed = s.pause
	if s.all() > 0 {
		return fmt.Errorf("before the gateways are touched: %v", &s)
	}
	return nil
}

// eachGateway does something to the gateways in turn and judges c after each; bound is how long a
// path may carry nothing.
func (l *Lab) eachGateway(c *flowSet, bound time.Duration, do func(*Process) error,
	after func() error) (_ string, err error) {
	defer step.Catch(&err)
	var pauses []string
	longest, receive, most := time.Duration(0), 0, 0
	for _, f := range c.flows {
		if f.does == receives {
			receive++
		}
	}
	for i := range plan.V4 {
		p := l.Process(plan.V4[i].Name + "/gateway")
		time.Sleep(2 * flowPause)
		c.resetLateness()
		step.Try(do(p))
		s := c.judge(time.Now())
		if n := s.all(); n > 0 {
			if !c.mayLose {
				return "", fmt.Errorf("%s: %v", p.Host.Name, &s)
			}
			most = max(most, n)
		}
		if err := c.tooLong(bound); err != nil {
			return "", fmt.Errorf("%s: %w", p.Host.Name, err)
		}
		if err := after(); err != nil {
			return "", fmt.Errorf("%s: %w", p.Host.Name, err)
		}
		longest = max(longest, s.pause)
		pauses = append(pauses, fmt.Sprintf("%s %d ms", plan.V4[i].Name, s.pause.Milliseconds()))
	}
	lost := "none"
	if most > 0 {
		lost = fmt.Sprintf("≤ %d", most)
	}
	return fmt.Sprintf("≤ %d ms, %s of %d connections lost, %d only receive; %s, undisturbed %d ms",
			longest.Milliseconds(), lost, len(c.flows), receive, strings.Join(pauses, ", "),
			c.undisturbed.Milliseconds()),
		nil
}

func (l *Lab) checkRestart(ctx context.Context, n int) (string, error) {
	return l.besideFlows(ctx, n, func(c *flowSet, exchange func() error) (string, error) {
		return l.eachGateway(c, restartPause, func(p *Process) error { return l.Restart(ctx, p.Host.Name) }, exchange)
	})
}

// kill ends the gateway of a host by SIGKILL and starts it again.
func (l *Lab) kill(ctx context.Context, p *Process) error {
	if err := p.kill(); err != nil {
		return err
	}
	return l.StartAgain(ctx, p.Host.Name)
}

// kill ends the process by SIGKILL.
func (p *Process) kill() error {
	p.stopped.Store(true)
	if err := p.Signal(unix.SIGKILL); err != nil {
		return err
	}
	<-p.ended
	return nil
}

func (l *Lab) checkKilled(ctx context.Context, n int) (string, error) {
	return l.besideFlows(ctx, n, func(c *flowSet, exchange func() error) (_ string, err error) {
		defer step.Catch(&err)
		for i := range plan.V4 {
			step.Try(l.awaitSaved(ctx, l.Gateway(i), time.Now()))
		}
		return l.eachGateway(c, killPause, func(p *Process) error { return l.kill(ctx, p) }, exchange)
	})
}

// awaitSaved waits until a gateway has saved its connections after a time.
func (l *Lab) awaitSaved(ctx context.Context, p *Process, after time.Time) error {
	return step.Await(ctx, savedWithin, 10*step.Poll, func() error {
		metrics, err := GatewayMetrics(ctx, p.Host)
		if err == nil && metrics["culvert_state_saved_timestamp_seconds"] <= float64(after.UnixMilli())/1000 {
			err = fmt.Errorf("%s has not written its connections", p.Name())
		}
		return err
	})
}

// checkYoung kills gateways that have not saved their connections yet, and counts how many are
// lost. Connections between pods need no saving.
func (l *Lab) checkYoung(ctx context.Context) (_ string, err error) {
	defer step.Catch(&err)
	for _, c := range plan.V4 { // afterwards, the next write is half a minute away
		step.Try(l.Restart(ctx, c.Name+"/gateway"))
	}
	return l.lossOf(ctx, func(p *Process) error { return l.kill(ctx, p) })
}

// checkForgotten shows the benefit of the saved state.
func (l *Lab) checkForgotten(ctx context.Context) (string, error) {
	return l.lossOf(ctx, func(p *Process) (err error) {
		defer step.Catch(&err)
		step.Try(l.StopProcess(p))
		c := plan.Of(p.Host.Name)
		step.Try(os.RemoveAll(l.Path(c.Name, "state/"+plan.Other(c).Name)))
		return l.StartAgain(ctx, p.Host.Name)
	})
}

// lossOf counts the losses of a small flow set when something is done to both gateways.
func (l *Lab) lossOf(ctx context.Context, do func(*Process) error) (string, error) {
	return l.besideFlows(ctx, youngOf, func(c *flowSet, _ func() error) (_ string, err error) {
		defer step.Catch(&err)
		for i := range plan.V4 {
			step.Try(do(l.Gateway(i)))
		}
		s := c.judge(time.Now())
		if s.all() == 0 {
			return "none lost", nil
		}
		return s.String(), nil
	})
}
