package fault

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	gatewaycontrol "culvert/gateway/control"
	"culvert/gateway/health"
	"culvert/integration/lab"
	"culvert/integration/lab/plan"
	"culvert/integration/lab/probe"
	"culvert/integration/lab/step"
)

// Named is what culvert status says about a fault while users try to reach each other.
type Named struct {
	Cluster string   `json:"cluster"` // whose gateway says it
	Cause   string   `json:"cause"`
	Says    string   `json:"says"`              // the sentence without its remedy; … replaces counts and times
	Besides []string `json:"besides,omitempty"` // other causes that the gateways rightly report too
	Or      *Named   `json:"or,omitempty"`      // an alternative; chance decides which one
}

// rome and milan are what the status of their gateways says.
func rome(cause, says string, besides ...string) *Named {
	return &Named{"rome", cause, says, besides, nil}
}

func milan(cause, says string, besides ...string) *Named {
	return &Named{"milan", cause, says, besides, nil}
}

// namedWithin is how soon a status names a fault, loggedWithin how soon the log does.
const (
	namedWithin  = 15 * time.Second
	loggedWithin = 20 * time.Second

	statusPace = 100 * time.Millisecond // between two looks
)

// ValidNames returns an error for a name that is neither a fault's nor "all".
func ValidNames(names []string) error {
	for _, name := range names {
		if name != "all" {
			if _, err := findFault(name); err != nil {
				return err
			}
		}
	}
	return nil
}

// NamedChecks make faults, wait until a gateway's status names them, and mend them.
func NamedChecks(names []string) func(*lab.Lab) []lab.Check {
	return func(of *lab.Lab) []lab.Check { return checksOf(of, "named", names, (*Lab).checkNamed) }
}

func (l *Lab) checkNamed(ctx context.Context, f *Fault) (_ string, err error) {
	defer step.Catch(&err)
	users, stop := context.WithCancel(ctx)
	var trials sync.WaitGroup
	trials.Go(func() { l.useAll(users) })
	defer trials.Wait()
	defer stop()
	step.Try(l.waitMeasured(ctx))
	before, logs := l.findings(ctx), l.logSizes()
	step.Try(l.Break(ctx, f.Name))
	began := time.Now()
	found, err := l.waitNamed(ctx, f, before)
	if err == nil && f.Named != nil {
		err = l.waitLogged(ctx, f, logs, began)
	}
	took := time.Since(began)
	mended := errors.Join(l.Mend(ctx, f.Name), l.observe(ctx, healthy))
	if mended != nil {
		mended = fmt.Errorf("after mend: %w", mended)
	}
	step.Try(errors.Join(err, mended))
	return fmt.Sprintf("after %.0f s: %s", took.Seconds(), found), nil
}

// waitMeasured waits until the gateways have measured the paths to each other and to the nodes, as
// in normal use.
func (l *Lab) waitMeasured(ctx context.Context) error {
	return step.Await(ctx, lab.ReachTimeout, statusPace, func() error {
		for i := range plan.V4 {
			s, err := l.gatewayStatus(ctx, i)
			if err != nil {
				return err
			}
			if s.Tunnel.RTTSeconds == nil || slices.ContainsFunc(s.Nodes,
				func(n gatewaycontrol.Node) bool { return n.RTTSeconds == nil }) {
				return fmt.Errorf("the gateway of %s has not measured its paths: %+v", plan.V4[i].Name, s)
			}
		}
		return nil
	})
}

// gatewayStatus asks the gateway of clusters[i].
func (l *Lab) gatewayStatus(ctx context.Context, i int) (*gatewaycontrol.Status, error) {
	return gatewaycontrol.NewClient(l.Socket(i)).Status(ctx)
}

// finding is a finding of a cluster's gateway.
type finding struct {
	cluster string
	gatewaycontrol.Finding
}

// same reports whether y is the same finding, apart from counts.
func (x finding) same(y finding) bool {
	return x.cluster == y.cluster && x.Cause == y.Cause && x.Of == y.Of
}

// findings returns the findings of both gateways. One that does not answer has none.
func (l *Lab) findings(ctx context.Context) (all []finding) {
	for i := range plan.V4 {
		s, err := l.gatewayStatus(ctx, i)
		if err != nil {
			continue
		}
		for _, f := range s.Findings {
			all = append(all, finding{plan.V4[i].Name, f})
		}
	}
	return all
}

// waitNamed waits until the status names the fault in the words of the list. No other fault may be
// named.
func (l *Lab) waitNamed(ctx context.Context, f *Fault, before []finding) (text string, err error) {
	if f.Named == nil {
		return f.Untold, nil
	}
	var others []string
	err = step.Await(ctx, namedWithin, statusPace, func() error {
		others = nil
		for _, x := range l.findings(ctx) {
			switch {
			case !slices.Contains(before, x) && (f.Named.is(&x) || f.Named.Or != nil && f.Named.Or.is(&x)):
				text = x.Text
			case x.Level == "warning" && !slices.ContainsFunc(before, x.same) &&
				!slices.Contains(f.Named.Besides, x.Cause):
				others = append(others, fmt.Sprintf("%s: %s: %s", x.cluster, x.Cause, x.Text))
			}
		}
		if text == "" {
			return fmt.Errorf("%s: the status of %s does not say: %s: %s; it says\n%s", f.Does, f.Named.Cluster,
				f.Named.Cause, f.Named.Says, strings.Join(others, "\n"))
		}
		return nil
	})
	if err == nil && len(others) > 0 {
		err = fmt.Errorf("%s: the status names not only %s but also\n%s", f.Does, f.Named.Cause,
			strings.Join(others, "\n"))
	}
	return text, err
}

// is reports whether x is what n says: counts, times and the remedy may differ.
func (n *Named) is(x *finding) bool {
	words := regexp.MustCompile("^" + strings.ReplaceAll(regexp.QuoteMeta(n.Says), "…", `.+?`) + "(: |$)")
	return x.cluster == n.Cluster && x.Cause == n.Cause && words.MatchString(x.Text)
}

// usePace is the pause between two attempts of a user.
const usePace = time.Second

// useAll makes pods of both clusters ping each other until ctx ends.
func (l *Lab) useAll(ctx context.Context) {
	var users sync.WaitGroup
	for _, pair := range [][2]string{{"rome/pod1", "milan/pod1"}, {"rome/pod2", "milan/pod2"}} {
		for _, e := range []*probe.Ends{l.Pair(pair[0], pair[1]), l.Pair(pair[1], pair[0])} {
			users.Go(func() {
				for ctx.Err() == nil {
					attempt, cancel := context.WithTimeout(ctx, probe.Pace) // as short as for a user who sends many
					e.Answered(attempt, 84, probe.Pace)
					cancel()
					step.Sleep(ctx, usePace)
				}
			})
		}
	}
	users.Wait()
}

// logSizes returns how long the logs of both gateways are, by host.
func (l *Lab) logSizes() map[string]int {
	sizes := make(map[string]int)
	for i := range plan.V4 {
		host := plan.V4[i].Name + "/gateway"
		text, _ := lab.ReadLines(l.Process(host).Log) // length 0 if it cannot be read
		sizes[host] = len(text)
	}
	return sizes
}

// waitLogged waits until a log has a line about the fault that is not within sizes: at level info
// or above, in the words of the status, with the remedy.
func (l *Lab) waitLogged(ctx context.Context, f *Fault, sizes map[string]int, began time.Time) error {
	return step.Await(ctx, loggedWithin-time.Since(began), statusPace, func() error {
		lines := 0
		for n := f.Named; n != nil; n = n.Or {
			host := n.Cluster + "/gateway"
			text, err := lab.ReadLines(l.Process(host).Log)
			if err != nil {
				return err
			}
			for line := range strings.Lines(text[min(sizes[host], len(text)):]) {
				if lines++; n.logs(line) {
					return nil
				}
			}
		}
		return fmt.Errorf("%s: of %d lines, none of the log of %s says: %s", f.Does, lines, f.Named.Cluster,
			f.Named.sentence())
	})
}

var messageOf = regexp.MustCompile(` level=(?:info|warning) msg=("(?:[^"\\]|\\.)*") `)

// logs reports whether a log line is n's, from its beginning to the end of its remedy.
func (n *Named) logs(line string) bool {
	cause, message := lab.CauseOf.FindStringSubmatch(line), messageOf.FindStringSubmatch(line)
	if cause == nil || message == nil || cause[1] != n.Cause {
		return false
	}
	text, err := strconv.Unquote(message[1])
	if err != nil {
		return false
	}
	words := regexp.QuoteMeta(n.sentence())
	return regexp.MustCompile("^" + strings.ReplaceAll(words, "…", ".+?") + "$").MatchString(text)
}

var blank = regexp.MustCompile(`\{\w+\}`)

// sentence returns what a status says, with its remedy.
func (n *Named) sentence() string {
	for _, c := range health.Causes() {
		if c.Name != n.Cause || c.Remedy == "" {
			continue
		}
		remedy := c.Remedy
		if c.Server != "" && plan.Of(n.Cluster+"/gateway").Role == "server" {
			remedy = c.Server
		}
		return n.Says + ": " + blank.ReplaceAllString(remedy, "…")
	}
	return n.Says
}
