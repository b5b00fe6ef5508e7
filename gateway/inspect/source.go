// Package inspect says what a gateway does and has done to whoever asks: by the control socket (status, connections, rules, captures, traces)
// and by HTTP (metrics, /healthz, /readyz). Nothing is counted twice for it, and the packet path does not wait for it: what takes long is done
// in parts, between which packets have their turn.
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

// A Teacher is what a gateway learns from in place of a file.
type Teacher interface {
	Ready() bool                  // /readyz waits for it
	Resources() control.Resources // what has come of them
}

// Life is what becomes of a gateway: another process may take over from it, and it may have taken over from one.
type Life interface {
	// Changeable returns why the gateway is not to be changed now, or nil.
	Changeable() error
	// HandOver is control.Source's.
	HandOver(o control.TakeoverOptions) (func(*net.UnixConn), error)
	// Listener returns the listener of a name at an address that the process before has left; nil = there is none.
	Listener(name, address string) (net.Listener, error)
	// WriteMetrics reports what is kept for the next gateway.
	WriteMetrics(page *prometheus.Page)
}

// Options are what a Source looks at. Log, Path, Monitor, Current and Life are required.
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
	// ReadAgain is what Reload does; nil = nobody can.
	ReadAgain func(ctx context.Context, dryRun bool) (*control.Reloaded, error)
}

// A Source is a gateway as control looks at it.
type Source struct {
	Options
	lookers   lookers     // of captures and traces
	capturing atomic.Bool // there is one
	dropRates dropRates
	lastView  viewCache
	watches   atomic.Int32 // of connections
}

// New makes a Source. Nobody asks it before Teacher and ReadAgain are set.
func New(o Options) *Source { return &Source{Options: o} }

// Look notes what it takes two looks to know. It is called once a second.
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
