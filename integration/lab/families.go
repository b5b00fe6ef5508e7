package lab

import (
	"culvert/integration/lab/netns"
	"culvert/integration/lab/plan"
)

// Plans are the plans of the lab's families for pods.
func (l *Lab) Plans() []*plan.Plan {
	return [...][]*plan.Plan{{&plan.V4}, {&plan.V4, &plan.V6}, {&plan.V6}}[l.Options.Inside]
}

// Plan is the plan of the family to test if one is enough: IPv6, if there are two.
func (l *Lab) Plan() *plan.Plan {
	all := l.Plans()
	return all[len(all)-1]
}

// At returns the named host with its address in that plan.
func (l *Lab) At(name string) *netns.Host { return l.HostOf(l.Plan(), name) }

// Outer is the plan of the tunnels' underlay.
func (l *Lab) Outer() *plan.Plan {
	if l.Options.Outside6 {
		return &plan.V6
	}
	return &plan.V4
}

// HostOf returns the named host with its address in a plan.
func (l *Lab) HostOf(p *plan.Plan, name string) *netns.Host {
	if p.Is6() {
		return l.six[name]
	}
	return l.Host(name)
}
