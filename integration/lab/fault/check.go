package fault

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	gatewaycontrol "culvert/gateway/control"
	"culvert/gateway/node"
	"culvert/integration/lab"
	"culvert/integration/lab/probe"
	"culvert/integration/lab/step"
)

// faultPatience is how long something that a fault cuts must stay silent.
const faultPatience = 250 * time.Millisecond

// Checks make each fault, check its symptom, and mend it.
func Checks(of *lab.Lab) []lab.Check {
	return checksOf(of, "fault", []string{"all"}, (*Lab).checkFault)
}

// checksOf returns a check for each of the named faults that the lab can have.
func checksOf(of *lab.Lab, check string, names []string,
	run func(*Lab, context.Context, *Fault) (string, error)) (checks []lab.Check) {
	l := &Lab{Lab: of}
	for i := range faults {
		f := &faults[i]
		if f.not != l.Options.Mode && (slices.Contains(names, f.Name) || slices.Contains(names, "all")) {
			checks = append(checks, lab.Check{Name: check, Path: f.Name,
				Run: func(ctx context.Context) (string, error) { return run(l, ctx, f) }})
		}
	}
	return checks
}

func (l *Lab) checkFault(ctx context.Context, f *Fault) (_ string, err error) {
	defer step.Catch(&err)
	before := step.Must(l.kernels())
	began := time.Now()
	err = l.Break(ctx, f.Name)
	made := time.Since(began)
	if err == nil {
		err = l.observe(ctx, f.Symptom)
	}
	if err != nil {
		err = fmt.Errorf("%s; want: %s: %w", f.Does, f.Symptom, err)
	}
	began = time.Now()
	step.Try(errors.Join(err, l.Mend(ctx, f.Name)))
	if err := l.observe(ctx, healthy); err != nil {
		return "", fmt.Errorf("after mend: %w", err)
	}
	mended := time.Since(began)
	after := step.Must(l.kernels())
	if !slices.Equal(before, after) {
		return "", fmt.Errorf("after mend kernels differ: %q, before %q", without(after, before),
			without(before, after))
	}
	return fmt.Sprintf("made in %d ms, mended in %d ms", made.Milliseconds(), mended.Milliseconds()), nil
}

// kernels lists what faults change in kernels: rules, routes, links and forwarding, of all hosts.
func (l *Lab) kernels() (lines []string, err error) {
	for _, h := range l.Hosts {
		err = errors.Join(err, h.Do(func() (err error) {
			defer step.Catch(&err)
			add := func(format string, args ...any) { lines = append(lines, h.Name+" "+fmt.Sprintf(format, args...)) }
			for _, family := range l.families() {
				for _, r := range step.Must(netlink.RuleList(family)) {
					add("rule %d %s iif %q", family, r, r.IifName)
				}
			}
			for _, link := range step.Must(netlink.LinkList()) {
				a := link.Attrs()
				features := step.Must(node.Features(a.Name))
				add("link %s, mtu %d, %s, segmentation %v", a.Name, a.MTU, a.Flags&net.FlagUp, slices.Contains(features,
					"tx-tcp-segmentation"))
				for _, family := range l.families() {
					for _, r := range step.Must(netlink.RouteList(link, family)) {
						if r.Dst == nil || !r.Dst.IP.IsLinkLocalUnicast() { // these appear some time after a link is up
							add("route %s via %s dev %s, %s, mtu %d", r.Dst, r.Gw, a.Name, r.Scope, r.MTU)
						}
					}
				}
			}
			for _, q := range step.Must(netlink.QdiscList(nil)) {
				if q.Type() == "ingress" {
					add("qdisc %s of link %d", q, q.Attrs().LinkIndex)
				}
			}
			for _, p := range l.Plans() {
				add("forwarding %s", step.Must(os.ReadFile(filepath.Join("/proc/sys/net", p.Forwarding()))))
			}
			return nil
		}))
	}
	slices.Sort(lines)
	return lines, err
}

// without returns the elements of only one of two lists.
func without(a, b []string) []string {
	return slices.DeleteFunc(slices.Clone(a), func(line string) bool { return slices.Contains(b, line) })
}

// observe requires the symptom: what should pass passes soon, and nothing else does.
func (l *Lab) observe(ctx context.Context, want *Symptom) error {
	var errs []error
	var mu sync.Mutex
	observe := func(passes bool) {
		var trials sync.WaitGroup
		for _, pair := range [][2]string{{"rome/pod1", "milan/pod1"}, {"rome/pod2", "milan/pod2"}} {
			for _, size := range []int{84, 1340} {
				for _, e := range []*probe.Ends{l.Pair(pair[0], pair[1]), l.Pair(pair[1], pair[0])} {
					if want.cuts(e.From.Name, size > 84) == passes || want == HalfCut && !passes {
						continue
					}
					trials.Go(func() {
						err := observe(ctx, e, size, passes)
						mu.Lock()
						defer mu.Unlock()
						errs = append(errs, err)
					})
				}
			}
		}
		trials.Wait()
	}
	observe(true)
	if errors.Join(errs...) == nil {
		observe(false)
	}
	if want.more != nil {
		errs = append(errs, want.more(ctx, l))
	}
	return errors.Join(errs...)
}

// awaitDrop waits until rome's gateway has dropped packets of its nodes for one of these reasons.
func (l *Lab) awaitDrop(ctx context.Context, reasons ...string) error {
	return step.Await(ctx, lab.ReachTimeout, probe.Pace, func() error {
		s, err := l.gatewayStatus(ctx, 0)
		if err == nil && !slices.ContainsFunc(s.Outbound.Drops,
			func(d gatewaycontrol.Drop) bool { return slices.Contains(reasons, d.Reason) }) {
			err = fmt.Errorf("rome's gateway drops nothing as %s", strings.Join(reasons, " or "))
		}
		return err
	})
}

// halfPasses requires that some of many connections work and some do not.
func halfPasses(ctx context.Context, l *Lab) (err error) {
	defer step.Catch(&err)
	e := l.Pair("rome/pod1", "milan/pod1")
	server := step.Must(probe.NewEchoServer(e.To))
	defer server.Close()
	const flows = 64
	waiting := make(map[net.Conn]bool)
	for range flows {
		conn := step.Must(e.DialUDP(ctx, server.Port()))
		defer conn.Close()
		waiting[conn] = true
	}
	for began := time.Now(); len(waiting) == flows && time.Since(began) < lab.ReachTimeout; {
		for conn := range waiting {
			step.Must(conn.Write([]byte("x")))
		}
		deadline := time.Now().Add(faultPatience)
		for conn := range waiting {
			conn.SetReadDeadline(deadline)
			if _, err := conn.Read(make([]byte, 1)); err == nil {
				delete(waiting, conn)
			}
		}
	}
	if passed := flows - len(waiting); passed == 0 || passed == flows {
		return fmt.Errorf("%s: %d of %d connections pass", e.Path(), passed, flows)
	}
	return nil
}

// observe requires an answer to a ping soon, or none for a while.
func observe(ctx context.Context, e *probe.Ends, size int, answers bool) error {
	limit := faultPatience
	if answers {
		limit = lab.ReachTimeout
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	err := e.Answered(ctx, size, probe.Pace)
	if err == nil && !answers {
		return fmt.Errorf("%s: packets of %d bytes pass", e.Path(), size)
	}
	if err != nil && answers {
		return fmt.Errorf("%s: packets of %d bytes do not pass: %w", e.Path(), size, err)
	}
	return nil
}

// families are the address families of a lab's kernels, by netlink's numbers.
func (l *Lab) families() []int {
	if l.Options.Inside == lab.IPv4 && !l.Options.Outside6 {
		return []int{unix.AF_INET}
	}
	return []int{unix.AF_INET, unix.AF_INET6}
}
