package join

import (
	"cmp"
	"context"
	"fmt"
	"net/netip"
	"time"

	"culvert/kube/deploy"
	"culvert/kube/manifests"
)

// Options are what the user wants of clusters. Errors call them by the flags of culvert join.
type Options struct {
	// Connect returns a client of the cluster of a context.
	Connect func(context string) (*deploy.Cluster, error)
	// Say is told what is found and waited for. Goroutines of several clusters may call it at once.
	Say func(text string)
	// Timeout is how long each wait lasts for what others have to do.
	Timeout time.Duration
	// Wishes are by the name of a cluster; "" has those of the only one.
	Wishes map[string]*Wishes

	Avoid    []netip.Prefix // what nothing that is chosen may overlap
	Image    string         // of culvert; "": the one that is installed
	Archs    []string       // for which Image is about to be pushed; nil: it is there
	Admit    string         // all or exports: what peers may open connections to; "": as it is, or all
	Services []string       // namespaces that clusters share, or "*"; nil: as they are; empty: none
	Replicas int            // pods of each gateway; 0: as it is, or 1
	Expose   string         // type of a Server's Service; "": as it is, or what the cluster has
	Endpoint string         // by which the Client reaches the Server; "": that of its Service
}

// Wishes are what the user wants of one cluster.
type Wishes struct {
	Pods, Services []netip.Prefix    // CIDRs; none: those that are found
	Imports        string            // namespace for the other cluster's exports; "": as it is
	Values         *manifests.Values // of the chart; nil: as they are
}

// flag returns a flag by which one of the wishes was given.
func (w *Wishes) flag() string {
	switch {
	case len(w.Pods) > 0:
		return "--pod-cidr"
	case len(w.Services) > 0:
		return "--service-cidr"
	case w.Imports != "":
		return "--imports"
	}
	return "--values"
}

func (o *Options) wishes(name string) *Wishes { return cmp.Or(o.Wishes[name], o.Wishes[""], &Wishes{}) }

func (o *Options) say(format string, args ...any) { o.Say(fmt.Sprintf(format, args...)) }

// Waiting returns a function that says what a cluster, or an end, waits for.
func (o *Options) Waiting(title string) func(missing string) {
	return func(missing string) { o.say("%s: waiting: %s", title, missing) }
}

// bounded returns a context that limits a wait.
func (o *Options) bounded(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(ctx, o.Timeout)
}
