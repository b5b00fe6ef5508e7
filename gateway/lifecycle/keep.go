package lifecycle

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/netip"
	"strings"
	"sync"
	"time"

	"github.com/sirupsen/logrus"

	"culvert/gateway/config"
	"culvert/gateway/path"
	"culvert/gateway/state"
	"culvert/gateway/sweep"
	"culvert/gateway/wg"
	"culvert/nat"
)

// keeper saves, for the next gateway, what is not in the configuration: the key of the port choice,
// the peer's address, and connections.
type keeper struct {
	*state.Keeper
	current *config.Current
	engine  *nat.Engine // nil until restore
	wg      *wg.Device  // nil until Begin
	gone    <-chan struct{}
	asOf    func() time.Time // Options.AsOf
	written state.Identity   // what the folder holds

	identityMu sync.Mutex // guards identity, which look, found and adopt change
	identity   state.Identity

	mu       sync.Mutex
	pending  bool     // +checklocks:mu
	restored restored // +checklocks:mu
	// the time of the restored connections; zero: there are none, or some could not be read
	restoredAsOf time.Time // +checklocks:mu
	// when connections were last written
	saved time.Time // +checklocks:mu
}

const (
	keepInterval = 30 * time.Second // between two writes of connections
	lookInterval = time.Second      // between two looks at the peer's address
)

// openKeeper locks the folder of c's peering and reads what the previous gateway left there. It
// fails only if another gateway uses the folder. Files that cannot be used are logged and ignored.
func openKeeper(life *Life, c *config.Config) (*keeper, error) {
	k := &keeper{current: life.Current, gone: life.gone, asOf: life.AsOf}
	k.identity = state.Identity{Cluster: c.Cluster, PortKey: newPortKey()}
	if life.taken != nil {
		k.identity = life.taken.identity
	}
	if dir := life.taken.folder(c); dir != nil {
		k.Keeper = &state.Keeper{Dir: dir, Log: life.Log}
		k.written, _ = dir.Identity(c.Cluster) // usually unchanged, and a write would delay the first packets
		return k, nil
	}
	var err error
	if k.Keeper, err = state.OpenKeeper(c.State, c.Peer, life.Log); err != nil {
		return nil, err
	}
	if k.Dir == nil || life.taken != nil { // the files are older than what was handed over
		return k, nil
	}
	before, err := k.Identity(c.Cluster)
	if err == nil {
		k.identity, k.written = before, before
	}
	k.pending = !errors.Is(err, state.ErrForeign) // then its connections are not ours either
	k.keepIdentity()                              // before a port is chosen by its key
	return k, nil
}

// restore gives e the saved connections, once, when it first has links. Nothing is written before.
func (k *keeper) restore(e *nat.Engine, links config.Links) {
	if k.engine == nil { // the first call: nobody else knows k yet
		k.engine = e
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if !k.pending || len(links.ByName) == 0 {
		return
	}
	k.pending = false
	r := k.engine.Restore(links.Find, path.Now())
	asOf, err := k.Restore(r, k.engine.Stats().MaxConnections)
	if errors.Is(err, fs.ErrNotExist) {
		return
	}
	k.restored = restored{r.End()}
	if k.restored.Whole && !asOf.After(time.Now()) { // a time to come means that the clock has been set back
		k.restoredAsOf = asOf
	}
	k.tell(err)
}

// tell logs in one line what was restored, and what was not and why.
//
// +checklocks:k.mu
func (k *keeper) tell(err error) {
	r := &k.restored
	entry := k.Log.WithFields(logrus.Fields{"connections": r.Connections, "clients": r.Clients})
	var missing []string
	for _, m := range r.missing() {
		if m.n > 0 {
			missing = append(missing, fmt.Sprintf("%s %d", m.why, m.n))
		}
	}
	if err != nil {
		missing = append(missing, err.Error())
	} else if !r.Whole {
		missing = append(missing, "the end is missing")
	}
	if len(missing) > 0 {
		entry.Warn("state: connections of the previous gateway are restored, but not all: " +
			strings.Join(missing, ", "))
		return
	}
	entry.Info("state: connections of the previous gateway are restored")
}

// known returns the identity as it is now.
func (k *keeper) known() state.Identity {
	k.identityMu.Lock()
	defer k.identityMu.Unlock()
	return k.identity
}

// lastOf returns the address of w's peer, or else the last known one.
func (k *keeper) lastOf(w *config.WireGuard) netip.AddrPort {
	k.identityMu.Lock()
	defer k.identityMu.Unlock()
	if p := &k.identity.Peer; p.PublicKey == w.PeerPublicKey.Base64() && p.Configured == w.Endpoint {
		return p.Endpoint
	}
	return netip.AddrPort{}
}

// restored counts the previous gateway's connections by what happened to them.
type restored struct{ nat.Restored }

// missing returns why connections, or blocks of them, were not restored.
func (r *restored) missing() []missing {
	return []missing{{"expired", r.Expired}, {"unknown-link", r.UnknownLink}, {"unbound", r.Unbound},
		{"no-room", r.NoRoom},
		{"damaged-block", r.Damaged}, {"foreign-block", r.Foreign}}
}

type missing struct {
	why string
	n   int
}

// run keeps the files up to date until ctx ends.
func (k *keeper) run(ctx context.Context) {
	if k.Dir == nil {
		return
	}
	tick := time.NewTicker(lookInterval)
	defer tick.Stop()
	due := time.Now().Add(keepInterval)
	for {
		k.look()
		now := time.Now()
		round := !now.Before(due)
		if round || !k.Broken() {
			k.keepIdentity()
		}
		if round && !errors.Is(k.keepConnections(func() { time.Sleep(sweep.Pause) }), state.ErrLeft) {
			due = now.Add(keepInterval)
		}
		select {
		case <-ctx.Done():
			k.look()
			return
		case <-tick.C:
		}
	}
}

// look records the peer's address.
func (k *keeper) look() {
	c, _ := k.current.Get()
	w := &c.WireGuard
	s, err := k.wg.PeerStats()
	if err != nil || s.LastHandshake.IsZero() {
		return
	}
	if at, err := netip.ParseAddrPort(s.Endpoint); err == nil {
		k.found(w, at)
	}
}

// found records the address of w's peer.
func (k *keeper) found(w *config.WireGuard, at netip.AddrPort) {
	k.identityMu.Lock()
	defer k.identityMu.Unlock()
	k.identity.Peer = state.Peer{PublicKey: w.PeerPublicKey.Base64(), Configured: w.Endpoint, Endpoint: at}
}

// end writes everything once more and unlocks the folder. No packet passes any more.
func (k *keeper) end() {
	defer k.Close()
	select {
	case <-k.gone:
		return
	default:
	}
	k.Stay() // a hand-over that has not ended by now fails
	k.keepIdentity()
	k.keepConnections(func() {})
}

// took records what was handed over.
func (k *keeper) took(r nat.Restored) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.restored = restored{r}
	k.tell(nil)
}

// keepIdentity writes the identity if it has changed.
func (k *keeper) keepIdentity() {
	if identity := k.known(); identity != k.written && k.Write(func(d *state.Dir) error {
		return d.KeepIdentity(&identity)
	}) == nil {
		k.written = identity
	}
}

// keepConnections writes all connections. It calls pause between them, so that packets can pass.
func (k *keeper) keepConnections(pause func()) error {
	k.mu.Lock()
	pending := k.pending
	k.mu.Unlock()
	if pending {
		return nil // the file has more than the table
	}
	_, links := k.current.Get()
	err := k.Write(func(d *state.Dir) error {
		return d.KeepConnections(k.asOf(), func(w io.Writer) error {
			return k.engine.Records(0, links.Name).Write(w, path.Now(), pause)
		})
	})
	if err == nil {
		k.mu.Lock()
		k.saved = time.Now()
		k.mu.Unlock()
	}
	return err
}

// peer is the peer of w, and its last known address.
func (k *keeper) peer(w *config.WireGuard) wg.Peer {
	return wg.Peer{PublicKey: w.PeerPublicKey, Preshared: w.PresharedKey, Endpoint: w.Endpoint, Last: k.lastOf(w),
		Keepalive: w.Keepalive}
}

// newPortKey returns a random key for nat's port choice.
func newPortKey() (key [16]byte) {
	rand.Read(key[:])
	return key
}
