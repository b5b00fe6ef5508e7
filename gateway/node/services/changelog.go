package services

import (
	"time"

	"github.com/sirupsen/logrus"
)

// A ChangeLog logs changes of Services: the first at once, those of the following minute in one
// line, together with the first change after it. Its zero value has logged nothing. It belongs to
// one goroutine at a time.
type ChangeLog struct {
	logged time.Time
	count  int // since then
}

// Add counts a change at now, after which this many services are served.
func (c *ChangeLog) Add(log logrus.FieldLogger, services int, now time.Time) {
	if c.count++; now.Sub(c.logged) < tellPause {
		return
	}
	log.WithFields(logrus.Fields{"services": services, "changes": c.count}).Info("services have changed")
	c.logged, c.count = now, 0
}
