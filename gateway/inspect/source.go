// Package inspect shows the state of a gateway: by the control socket (status, connections, rules,
// captures, traces) and by HTTP (metrics, /healthz, /readyz). It reads counters that exist anyway,
// and the packet path does not wait for it: long work is done in slices, between which packets
// pass.
package inspect

import (
	"context"
	"net"
	"sync/atomic"

	"github.com/sirupsen/logrus"

	"culvert/gateway/config"
	"culvert/gateway/control"
	"culvert/gateway/doctor"
	"culvert/gateway/monitor"
	"culvert/gateway/path"
	"culvert/gateway/prometheus"
)

// A Teacher configures a gateway, in place of a file.
type Teacher interface {
	Ready() bool                  // /readyz is false before
	Resources() control.Resources // the state of each resource
}

// An Elector runs the election in which a gateway takes part.
type Elector interface {
	Replica() control.Replica
}

// Life is the part of lifecycle.Life that inspect needs: the hand-over from and to other processes.
type Life interface {
	// Changeable returns an error while the gateway must not be changed, otherwise nil.
	Changeable() error
	// HandOver implements HandOver of control.Source.
	HandOver(o control.TakeoverOptions) (func(*net.UnixConn), error)
	// Listener returns the previous process's listener with this name at an address; nil = none.
	Listener(name, address string) (net.Listener, error)
	// WriteMetrics reports what is saved for the next gateway.
	WriteMetrics(page *prometheus.Page)
}

// Options are the parts of a gateway that a Source shows. Log, Path, Monitor, Current and Life are
// required.
type Options struct {
	Log     *logrus.Entry
	Path    *path.Path
	Monitor *monitor.Monitor
	Current *config.Current
	Life    Life
	Ready   func() bool          // it carries packets
	Heap    int64                // aim of Go's collector in bytes
	Memory  func() doctor.Memory // the limit of this process
	Teacher Teacher              // nil: a file
	Elector Elector              // nil: the gateway has no replicas
	// Replication says how complete the copies of the gateway's table are; nil: it has none.
	Replication func() control.Replication
	// ReadAgain implements Reload; nil = not possible.
	ReadAgain func(ctx context.Context, dryRun bool) (*control.Reloaded, error)
}

// A Source is a gateway as package control sees it.
type Source struct {
	Options
	recording atomic.Pointer[recording] // of the capture in progress; nil = none
	dropRates dropRates
	lastView  viewCache
	watches   atomic.Int32 // of connections
}

// New makes a Source. It must not be used before Teacher and ReadAgain are set.
func New(o Options) *Source { return &Source{Options: o} }

// Look takes the samples from which rates are computed. It is called once a second.
func (src *Source) Look() {
	src.tellDiscards()
	src.dropRates.note(path.Uptime(), func() map[dropKey]uint64 {
		stats, tunnels, tunnel := src.Path.Engine.Stats(), src.Path.Endpoint.Stats(), src.Path.WG.Stats()
		return src.drops(&stats, &tunnels, &tunnel)
	})
}

// HandOver implements control.Source.
func (src *Source) HandOver(o control.TakeoverOptions) (func(*net.UnixConn), error) {
	return src.Life.HandOver(o)
}

// Doctor implements control.Source.
func (src *Source) Doctor() []control.Condition {
	tunnel := src.Path.WG.Stats()
	m := src.Memory()
	m.Connections = src.Path.Engine.Stats().MaxConnections
	return doctor.Examine(&doctor.Subject{Sockets: src.Path.Sockets(&tunnel), Memory: m})
}
