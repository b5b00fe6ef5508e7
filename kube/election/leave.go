package election

import (
	"context"
	"encoding/json"
	"time"

	"k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"culvert/gateway/role"
	"culvert/kube/objects"
)

// A Table is a gateway's connections, which the other gateways copy by a stream.
type Table interface {
	// Flush waits until the others have all changes before the call.
	Flush(context.Context) error
	// Tell sends the others a notice, after what Flush has flushed, and returns their number.
	Tell(notice []byte) int
}

// A notice is what a gateway says to another one by the stream. When one gateway gets the Lease
// while another one still forwards, the table changes hands:
//
//	has the table                              follows it
//	                    free ──────────────►   attempts to have the Lease at once
//	                ◄────────────── mine       has it
//	sends nothing any more, flushes
//	                   yours ──────────────►   forwards
//
// Only a gateway that leaves says "free". The other notices are also sent when a Lease has run out,
// for example because its holder cannot reach the API server. So no connection that began before
// the change is missing after it. If the other gateway hears no "yours", it forwards after
// yieldTime.
type notice struct {
	Says string `json:"says"`
	Pod  string `json:"pod"`  // who says it
	Term int64  `json:"term"` // of the Lease, which the speaker has, or with "yours" the hearer
}

const (
	saysFree  = "free"
	saysMine  = "mine"
	saysYours = "yours"
)

const (
	// maxSaid is how many notices may wait; more are dropped. A change of roles takes three.
	maxSaid = 16
	// flushTime limits how long a gateway that leaves waits until the others have its table. It
	// takes long only during a full copy.
	flushTime = 5 * time.Second
	// yieldTime is how long a gateway that has the Lease lets another one send it the rest of the
	// table.
	yieldTime = 500 * time.Millisecond
	// releaseTimeout is how long giving back a Lease may take. If it fails, another gateway gets
	// the Lease when it runs out.
	releaseTimeout = 2 * time.Second
	// leavePoll is how often a gateway that leaves checks whether another one has the Lease.
	// Without a stream, that one cannot say so.
	leavePoll = 100 * time.Millisecond
)

// Heard accepts a notice of another gateway. It does not block.
func (e *Elector) Heard(message []byte) {
	var n notice
	if json.Unmarshal(message, &n) != nil {
		return // of a newer version
	}
	select {
	case e.said <- n:
	default:
	}
}

// Claim returns the notice that tells another gateway that this one has the Lease; nil if it has
// not. A gateway that was cut off when this one took the Lease may still forward.
func (e *Elector) Claim() []byte {
	e.mu.Lock()
	defer e.mu.Unlock()
	l, _, _ := e.machine.Lease(e.now())
	if e.role != role.Active || l.Holder != e.Pod {
		return nil
	}
	message, err := json.Marshal(notice{saysMine, e.Pod, l.Term})
	if err != nil {
		panic(err) // unreachable: strings and a number
	}
	return message
}

// tell sends a notice to the other gateways, and reports whether there are any.
func (e *Elector) tell(says string, term int64) bool {
	e.mu.Lock()
	t := e.table
	e.mu.Unlock()
	if t == nil {
		return false
	}
	message, err := json.Marshal(notice{says, e.Pod, term})
	return err == nil && t.Tell(message) > 0
}

// listen handles the notices of other gateways, until ctx ends.
func (e *Elector) listen(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case n := <-e.said:
			e.hear(ctx, &n)
		}
	}
}

func (e *Elector) hear(ctx context.Context, n *notice) {
	switch n.Says {
	case saysFree:
		signal(e.poke)
	case saysMine:
		e.mu.Lock()
		ending := e.ending
		if !ending {
			e.machine.Told(n.Pod, n.Term, e.now())
			e.announce()
		}
		forwards := e.role.Forwards()
		e.mu.Unlock()
		switch {
		case ending:
			signal(e.taken) // Leave yields
		case !forwards:
			e.yield(ctx, n.Term)
		}
	case saysYours:
		e.mu.Lock()
		e.yieldedTo = max(e.yieldedTo, n.Term)
		e.mu.Unlock()
		signal(e.yielded)
	}
}

// yield flushes the table and leaves it to the gateway that has the Lease with this term. This
// gateway no longer sends anything.
func (e *Elector) yield(ctx context.Context, term int64) {
	if e.flush(ctx, yieldTime) {
		e.tell(saysYours, term)
	}
}

// flush sends all changes to the others, and reports whether they have them.
func (e *Elector) flush(ctx context.Context, patience time.Duration) bool {
	e.mu.Lock()
	t := e.table
	e.mu.Unlock()
	if t == nil {
		return false
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	if err := t.Flush(ctx); err != nil {
		e.Log.WithError(err).Warn("the standby may lack the newest connections")
		return false
	}
	return true
}

// take makes the previous gateway stop, and waits until the whole table is here. This gateway has
// the Lease with this term.
func (e *Elector) take(ctx context.Context, term int64) {
	if !e.tell(saysMine, term) {
		return
	}
	patience := time.NewTimer(yieldTime)
	defer patience.Stop()
	for {
		e.mu.Lock()
		to := e.yieldedTo
		e.mu.Unlock()
		if to >= term {
			return
		}
		select {
		case <-e.yielded:
		case <-patience.C:
			e.Log.Warn("the gateway that had the Lease has not confirmed that it stopped; its newest connections may be missing")
			return
		case <-ctx.Done():
			return
		}
	}
}

// Leave gives back the Lease. It returns true when another gateway has the Lease and all
// connections, and false after leavePatience, when there seems to be no other one. The gateway
// carries packets until another one has the Lease, but starts nothing towards the peer; then it
// becomes a standby.
func (e *Elector) Leave(ctx context.Context) (succeeded bool) {
	e.mu.Lock()
	had, g := e.role, e.gateway
	e.ending = true
	e.mu.Unlock()
	if g == nil || !had.Forwards() {
		e.trying <- struct{}{} // it may have got the Lease, and the gateway that had it carries nothing any more
		defer func() { <-e.trying }()
		if successor, err := e.release(ctx); err == nil && successor == nil {
			e.tell(saysFree, 0)
		}
		return true
	}
	g.Become(role.Static)
	e.flush(ctx, flushTime)
	successor, err := e.release(ctx)
	switch {
	case err != nil:
		e.Log.WithError(err).Warn("the Lease is not released: another gateway gets it when it expires")
	case successor == nil:
		e.tell(saysFree, 0)
		successor = e.awaitSuccessor(ctx)
	}
	e.mu.Lock()
	e.machine.Released(e.now())
	e.announce()
	e.mu.Unlock()
	if successor != nil {
		e.yield(ctx, successor.Term)
	} else {
		e.flush(ctx, yieldTime)
	}
	return successor != nil
}

// release gives back the Lease if this gateway has it, so that another one can take it at once. If
// another one already has it, release returns that Lease.
func (e *Elector) release(ctx context.Context) (other *role.Lease, err error) {
	ctx, cancel := context.WithTimeout(ctx, releaseTimeout)
	defer cancel()
	client := e.Client.Resource(objects.Leases).Namespace(e.Namespace)
	for {
		u, err := client.Get(ctx, e.Name, metav1.GetOptions{})
		if err != nil {
			return nil, ignoreAbsent(err)
		}
		have, err := readLease(u)
		if err != nil || have.Holder == "" {
			return nil, err
		}
		if have.Holder != e.Pod {
			return have, nil
		}
		next, err := writeLease(u, e.Namespace, e.Name, nil, &role.Lease{Term: have.Term, Duration: time.Second},
			time.Now())
		if err != nil {
			return nil, err
		}
		if _, err = client.Update(ctx, next, metav1.UpdateOptions{}); !errors.IsConflict(err) {
			return nil, err
		}
	}
}

// leavePatience is longer than a standby without a stream takes to see that the Lease is free.
func (e *Elector) leavePatience() time.Duration {
	return time.Duration((1+role.Jitter)*float64(e.Retry)) + time.Second/2
}

// awaitSuccessor waits until another gateway has the Lease, and returns it; nil: none has taken it.
func (e *Elector) awaitSuccessor(ctx context.Context) *role.Lease {
	ctx, cancel := context.WithTimeout(ctx, e.leavePatience())
	defer cancel()
	for {
		if u, err := e.Client.Resource(objects.Leases).Namespace(e.Namespace).Get(ctx, e.Name,
			metav1.GetOptions{}); err == nil {
			if l, err := readLease(u); err == nil && l.Holder != "" {
				e.Log.WithField("pod",
					l.Holder).Info("another gateway has the Lease; this one no longer carries packets")
				return l
			}
		}
		select {
		case <-ctx.Done():
			e.Log.Info("no other gateway has taken the Lease")
			return nil
		case <-e.taken:
		case <-time.After(leavePoll):
		}
	}
}
