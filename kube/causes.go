package kube

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/sirupsen/logrus"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// Causes logs each cause of failed API requests once, until they succeed again.
type Causes struct {
	log *logrus.Entry

	mu        sync.Mutex
	told      map[string]bool // +checklocks:mu
	forbidden map[string]bool // requests that the API server refuses for want of a right; +checklocks:mu
	refused   map[string]bool // those and others that it refuses whenever it answers; +checklocks:mu
}

// NewCauses returns a Causes that has logged nothing.
func NewCauses(log *logrus.Entry) *Causes {
	return &Causes{log: log, told: map[string]bool{}, forbidden: map[string]bool{}, refused: map[string]bool{}}
}

// Refuses reports whether the API server has refused the last request of a verb and a resource for
// want of a right, or because it does not know it.
func (c *Causes) Refuses(request string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.refused[request]
}

// Refused says which rights are missing; "" if none is.
func (c *Causes) Refused() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.forbidden) == 0 {
		return ""
	}
	return "the API server refuses for want of rights: " + strings.Join(slices.Sorted(maps.Keys(c.forbidden)), ", ")
}

// Log logs why a request failed, once for each cause. While the API server is away, all requests
// have the same cause.
func (c *Causes) Log(ctx context.Context, verb, resource string, err error) {
	if ctx.Err() != nil {
		return
	}
	var status apierrors.APIStatus
	var cause string
	switch {
	case err == nil:
	case apierrors.IsResourceExpired(err), apierrors.IsGone(err), apierrors.IsConflict(err):
		return // the reflector lists or reads again
	case errors.As(err, &status):
		cause = verb + " " + resource
	default:
		cause = "away"
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	request := verb + " " + resource
	if c.refused[request] = apierrors.IsForbidden(err) || apierrors.IsNotFound(err); !c.refused[request] {
		delete(c.refused, request)
	}
	if apierrors.IsForbidden(err) {
		c.forbidden[request] = true
	} else if err == nil {
		delete(c.forbidden, request)
	}
	if err == nil {
		for _, was := range []string{"away", verb + " " + resource} {
			if c.told[was] {
				delete(c.told, was)
				c.log.WithFields(logrus.Fields{"verb": verb, "resource": resource}).Info("the API server answers again")
			}
		}
		return
	}
	if !c.told[cause] {
		c.told[cause] = true
		c.log.WithError(err).WithFields(logrus.Fields{"verb": verb, "resource": resource}).Warn(
			"request to the API server failed; retrying")
	}
}
