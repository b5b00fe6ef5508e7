package check

import (
	"fmt"
	"strings"
	"time"

	"culvert/integration/lab"
	"culvert/integration/lab/fault"
)

// picture is a packet's path. Each line has a figure to look for.
const picture = `  rome, pods 10.0.0.0/16                                               milan, pods 10.0.0.0/16 as well
  pod1 10.0.1.5 ── node1 ═╗                                              ╔═ node1 ── pod1 10.0.1.5
  Geneve, UDP 6091        ╠═ culvert ══ WireGuard, UDP 51840 ══ culvert ═╣  Geneve, UDP 6091
  pod2 10.0.2.6 ── node2 ═╝                                              ╚═ node2 ── pod2 10.0.130.7
  sees milan as 10.61.0.0/16                                           sees rome as 10.62.0.0/16
`

// Columns of a brief line: 100 with the result, the count, the time and the gaps.
const (
	briefName   = 33
	briefFigure = 44
)

// next suggests what to try after success, with a lab that was started as program.
func next(program string) string {
	culvert := strings.TrimSuffix(program, "-lab")
	return fmt.Sprintf(`next: 1. %[1]s up                                   two clusters that stay, in 0.2 s
      2. %[1]s exec rome/pod1 ping milan/pod1       from one to the other
      3. %[1]s break wrong-vni                      %[2]d faults to learn from; mend
      4. %[3]s init try --here                          your own network, in 8 commands
`, program, len(fault.All()), culvert)
}

// brief describes the lab in a few words.
func brief(o lab.Options) string {
	frames := "ordinary frames"
	if o.Offloads {
		frames = "super-frames"
	}
	switch {
	case o.Attacks:
		frames = "attacks"
	case o.Keep:
		frames = "restarts"
	case o.Outside:
		frames = "services, outside"
	case o.Rome.MTU != o.Milan.MTU:
		frames += fmt.Sprintf(", mtu %d", o.Milan.MTU)
	}
	if o.Inside != lab.IPv4 {
		frames += ", IPv6"
	}
	if o.Outside6 {
		frames += " twice"
	}
	return fmt.Sprintf("%s, %s", o.Mode, frames)
}

// headlines are the checks with the most important figures, up to the first comma or semicolon.
var headlines = []struct{ check, says string }{
	{"ping", "ping %s"},
	{"tcp upload", "TCP %s"},
	{"too big, far mtu", "too big: %s"},
	{"reload under load", "%s under 8 streams"},
	{"handshakes", "flood %s"},
	{"new session", "innocents lost 0%.0s"}, // otherwise the check would have failed
	{"restart", "restart %s"},
	{"hand-over", "upgrade %s"},
	{"fault", "first %s"},
}

// headline returns a lab's most important figures.
func (p *printer) headline() string {
	var all []string
	for _, h := range headlines {
		if figure := p.figures[h.check]; figure != "" {
			figure = figure[:strings.IndexAny(figure+";", ",;")]
			all = append(all, fmt.Sprintf(h.says, figure))
		}
	}
	if p.failedNow > 0 {
		all = append([]string{fmt.Sprintf("%d failed", p.failedNow)}, all...)
	}
	return strings.Join(all, ", ")
}

// left estimates the remaining seconds of all planned labs, from the time of earlier ones; "" if
// none are left.
func (p *printer) left() string {
	planned := func(labs []plannedLab) (seconds float64) {
		for _, l := range labs {
			seconds += l.seconds
		}
		return seconds
	}
	if p.ended == len(p.plan) {
		return ""
	}
	pace := 1.0 // of this machine
	if p.ended > 0 {
		pace = p.endedAt.Sub(p.began).Seconds() / planned(p.plan[:p.ended])
	}
	rest := planned(p.plan[p.ended:]) * pace
	if p.ended < p.labs { // one is running
		rest = max(rest-time.Since(p.labBegan).Seconds(), rest-p.plan[p.ended].seconds*pace)
	}
	return fmt.Sprintf(", about %.0f s to go", rest)
}

// working shows on a terminal what is being checked.
func (p *printer) working(c lab.Check) {
	if p.terminal {
		p.clear()
		fmt.Fprintf(p.out, "     %s: %s %s%s", brief(p.options), c.Name, c.Path, p.left())
	}
}

// clear erases the output of working.
func (p *printer) clear() {
	if p.terminal {
		fmt.Fprint(p.out, "\r\x1b[K")
	}
}
