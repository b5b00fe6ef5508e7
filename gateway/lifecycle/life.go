// Package lifecycle passes a gateway's state to another process: through a folder, to the gateway
// that is started next (keep.go), or by the hand-over of a running gateway. handover.go and
// handing.go are the old process's side of a hand-over; takeover.go, offered.go and overlap.go are
// the new one's. Package handover has the messages between them.
package lifecycle

import (
	"context"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sirupsen/logrus"

	"culvert/gateway/config"
	"culvert/gateway/monitor"
	"culvert/gateway/path"
	"culvert/gateway/prometheus"
	"culvert/gateway/wg"
	"culvert/nat"
)

// Options are the parts of the gateway that a Life uses.
type Options struct {
	Log       *logrus.Entry
	Current   *config.Current
	Applying  sync.Locker                    // held while the configuration changes
	Ready     func() bool                    // the gateway carries packets
	Listeners func() map[string]net.Listener // that are open: metrics, health, control and uapi
	// when the table of connections last equalled that of the forwarding gateway
	AsOf func() time.Time
}

// A Life belongs to one gateway, from before the gateway opens anything until it has closed
// everything.
type Life struct {
	Options
	path      *path.Path // nil until Begin, as monitor
	monitor   *monitor.Monitor
	keeper    *keeper // nil until Open
	taken     *Taking // the gateway that it takes over from; nil = none
	lent      []lentSocket
	muted     map[string]bool // tunnels whose sockets are to be muted
	handing   atomic.Bool     // it hands over
	gone      chan struct{}   // closed when another process carries the packets,
	successor atomic.Int64    // which has this ID
}

// New makes the Life of a gateway that takes over from t; nil = from none.
func New(o Options, t *Taking) *Life { return &Life{Options: o, taken: t, gone: make(chan struct{})} }

// Open locks the folder of c's peering. It fails only if another gateway uses the folder.
func (life *Life) Open(c *config.Config) (err error) {
	life.keeper, err = openKeeper(life, c)
	return err
}

// PortKey is the engine's key for the choice of ports.
func (life *Life) PortKey() [16]byte { return life.keeper.known().PortKey }

// Restore gives e the saved connections, once, when it first has links.
func (life *Life) Restore(e *nat.Engine, links config.Links) { life.keeper.restore(e, links) }

// RestoredAsOf returns the time at which the restored connections were those of the forwarding
// gateway. It returns the zero Time if there were none, or if some could not be read.
func (life *Life) RestoredAsOf() time.Time {
	life.keeper.mu.Lock()
	defer life.keeper.mu.Unlock()
	return life.keeper.restoredAsOf
}

// Peer is the peer of w, and its last known address.
func (life *Life) Peer(w *config.WireGuard) wg.Peer { return life.keeper.peer(w) }

// Found records the address of w's peer that another gateway or an earlier session has found.
func (life *Life) Found(w *config.WireGuard, at netip.AddrPort) { life.keeper.found(w, at) }

// Begin sets the path that carries the packets. It is called before the first packet.
func (life *Life) Begin(p *path.Path, m *monitor.Monitor) {
	life.path, life.monitor, life.keeper.wg = p, m, p.WG
	if life.taken != nil {
		p.WG.Expect(life.keeper.known().Peer.Endpoint, life.taken.offer.Local)
	}
}

// Keep keeps the folder up to date until ctx ends.
func (life *Life) Keep(ctx context.Context) { life.keeper.run(ctx) }

// Overlap completes the take-over, if there was one.
func (life *Life) Overlap() { life.taken.finish(life) }

// Save writes all connections to the folder now.
func (life *Life) Save() {
	life.keeper.keepConnections(func() {})
}

// End writes everything once more and unlocks the folder. No packet passes any more.
func (life *Life) End() { life.keeper.end() }

// Close unlocks the folder and changes nothing in it.
func (life *Life) Close() {
	if life.keeper != nil {
		life.keeper.Close()
	}
}

// Gone is closed when another process carries the packets.
func (life *Life) Gone() <-chan struct{} { return life.gone }

// Successor returns the process that has taken over; 0 = none has, or it is unknown.
func (life *Life) Successor() int { return int(life.successor.Load()) }

// Changeable returns an error while the gateway hands over, because the other process would not get
// the change.
func (life *Life) Changeable() error {
	if life.handing.Load() {
		return ErrHanding
	}
	return nil
}

// Listener returns the previous process's listener with this name at the configured address; nil if
// it has none there.
func (life *Life) Listener(name, address string) (net.Listener, error) {
	return life.taken.listener(name, address)
}

// Saved returns when connections were last written to the state folder; zero = never.
func (life *Life) Saved() time.Time {
	k := life.keeper
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.saved
}

// WriteMetrics reports what is saved for the next gateway, and which of the previous gateway's
// records this one could not use.
func (life *Life) WriteMetrics(p *prometheus.Page) {
	saved := 0.0
	if at := life.Saved(); !at.IsZero() {
		saved = float64(at.UnixMilli()) / 1000
	}
	k := life.keeper
	k.mu.Lock()
	defer k.mu.Unlock()
	p.One(prometheus.Gauge, "state_saved_timestamp_seconds",
		"When connections were last written to the state folder; 0 = never.", saved)
	p.Family(prometheus.Gauge, "state_not_restored",
		"Connections that the previous gateway has left and this one has not, by reason; of blocks that cannot be read, the blocks.", "reason")
	for _, m := range k.restored.missing() {
		p.Add(float64(m.n), m.why)
	}
	p.One(prometheus.Counter, "state_save_failures_total", "Writes to the state folder that failed.",
		float64(k.Failures()))
}
