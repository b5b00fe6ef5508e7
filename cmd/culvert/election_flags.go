package main

import (
	"time"

	"culvert/gateway/config"
	"culvert/gateway/configfile"
	"culvert/gateway/role"
)

// electionTimes are the times in Liqo's flags.
type electionTimes struct{ lease, deadline, retry time.Duration }

// election reads the flags of an election into c, and returns its times. Missing flags default to
// def.
func (l *liqoFlags) election(e *configfile.Errors, c *config.Config, def electionTimes) electionTimes {
	t := def
	const prefix = "leader-election-"
	for _, f := range []struct {
		name string
		to   *time.Duration
	}{{"lease-duration", &t.lease}, {"renew-deadline", &t.deadline}, {"retry-period", &t.retry}} {
		path, text := "--"+prefix+f.name, *l.text[prefix+f.name]
		if text == "" {
			continue
		}
		const least = 100 * time.Millisecond
		*f.to = e.Duration(path, configfile.Scalar(text), least, time.Hour)
		if *f.to < least {
			e.Add(path, "%v is less than %v", *f.to, least)
		}
	}
	if !e.Bad("--"+prefix+"lease-duration") && t.lease%time.Second != 0 {
		e.Add("--"+prefix+"lease-duration", "%v: a Lease counts in whole seconds", t.lease)
	}
	if t.lease <= t.deadline {
		e.Add("--"+prefix+"lease-duration", "%v is not longer than --leader-election-renew-deadline, %v",
			t.lease, t.deadline)
	}
	if float64(t.deadline) <= role.Jitter*float64(t.retry) {
		e.Add("--"+prefix+"renew-deadline", "%v is not longer than %v times --leader-election-retry-period, %v",
			t.deadline, role.Jitter, t.retry)
	}
	c.Elected = e.Bool("--leader-election", configfile.Scalar(*l.text["leader-election"]), false)
	return t
}
