//go:build !nokube

package main

import (
	"context"
	"strconv"
	"sync"
	"time"

	"github.com/sirupsen/logrus"
	"k8s.io/client-go/dynamic"

	"culvert/gateway"
	"culvert/gateway/config"
	"culvert/gateway/control"
	"culvert/gateway/role"
	"culvert/kube"
	"culvert/kube/election"
)

// An electing is a gateway that takes part in an election.
type electing struct {
	*election.Elector
	teller   *kube.Teller
	about    kube.Event  // the object that Events are about
	learned  func() bool // the gateway has its rules
	tasks    sync.WaitGroup
	stop     context.CancelFunc // of tasks
	deserted bool               // it has left, and no other replica has taken over; after runElected
}

// elect returns the election for the gateway of base; nil if it has no replicas.
func elect(client dynamic.Interface, base *config.Config, t electionTimes, o election.Options, about kube.Event,
	reporter kube.Reporter, log *logrus.Entry) *electing {
	if !base.Elected {
		return nil
	}
	patience := time.Duration(base.ConnectionCheck.Threshold) * base.ConnectionCheck.Interval
	if patience == 0 {
		patience = time.Duration(config.LiqoConnectionCheck.Threshold) * config.LiqoConnectionCheck.Interval
	}
	reporter.Client, reporter.Causes = client, kube.NewCauses(log)
	e := &electing{teller: kube.NewTeller(reporter, log), about: about}
	e.about.Reason = "RoleChanged"
	o.Client, o.Log, o.Causes, o.Told = client, log, reporter.Causes, e.told
	o.ReplicaPort = gateway.ReplicaPort
	o.Times, o.Retry, o.Deadline = role.Times{Lease: t.lease, Patience: patience}, t.retry, t.deadline
	e.Elector = election.New(o)
	return e
}

func (e *electing) told(message string) {
	event := e.about
	event.Message = message
	e.teller.Say(event)
}

// begin takes part in the election until end.
func (e *electing) begin() {
	ctx, stop := context.WithCancel(context.Background())
	e.stop = stop
	e.tasks.Go(func() { e.Run(ctx) })
	e.tasks.Go(func() { e.teller.Run(ctx, nil) })
}

// lastPatience is how long the last Events of a gateway may take.
const lastPatience = 2 * time.Second

// end stops the tasks that begin has started, and writes their last Events: a gateway that leaves
// has just changed its role. It does nothing for nil.
func (e *electing) end() {
	if e != nil {
		e.stop()
		e.tasks.Wait()
		ctx, cancel := context.WithTimeout(context.Background(), lastPatience)
		defer cancel()
		e.teller.Flush(ctx)
	}
}

// speaks reports whether this gateway writes the status of objects.
func (e *electing) speaks() bool { return e == nil || e.Role().Speaks() }

// Replica implements inspect.Elector.
func (e *electing) Replica() control.Replica {
	s := e.State()
	r := control.Replica{Role: s.Role.String(), Why: s.Why, Pod: e.Pod, Holder: s.Holder,
		Lease: e.Namespace + "/" + e.Name, Term: s.Term, Changes: s.Changes}
	if s.Holder != "" {
		age := s.Age.Seconds()
		r.LeaseSeconds = &age
	}
	if s.Failing > 0 {
		failing := s.Failing.Seconds()
		r.FailingSeconds = &failing
	}
	return r
}

// runElected runs g until ctx ends, and then hands over to another replica, if there is one. e is
// nil without an election.
func runElected(ctx context.Context, g *gateway.Gateway, e *electing) error {
	if e == nil {
		return g.Run(ctx)
	}
	running, stop := context.WithCancel(context.WithoutCancel(ctx))
	var tasks sync.WaitGroup
	defer tasks.Wait()
	defer stop()
	r, err := g.Replicate(gateway.ReplicateOptions{Name: e.Pod, Listen: ":" + strconv.Itoa(gateway.ReplicaPort),
		Heard: e.Heard})
	if err != nil {
		return err
	}
	e.CatchUp(running, r, e.learned)
	e.Drive(g, r)
	tasks.Go(func() { e.Copy(running, r, e.learned) })
	tasks.Go(func() {
		select {
		case <-ctx.Done():
			e.deserted = !e.Leave(running)
			stop()
		case <-running.Done():
		}
	})
	return g.Run(running)
}
