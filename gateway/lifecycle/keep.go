package lifecycle

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/netip"
	"os"
	"strings"
	"sync"
	"sync/atomic"
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
	log     *logrus.Entry
	current *config.Current
	engine  *nat.Engine // nil until restore
	wg      *wg.Device  // nil until Begin
	gone    <-chan struct{}
	asOf    func() time.Time // Options.AsOf
	dir     *state.Dir       // nil = nothing is kept
	written state.Identity   // what the folder holds
	broken  bool             // the last write failed
	writing sync.Mutex       // held while something is written
	left    atomic.Bool      // another process may own the folder

	identityMu sync.Mutex // guards identity, which look, found and adopt change
	identity   state.Identity

	mu       sync.Mutex
	pending  bool     // +checklocks:mu
	restored restored // +checklocks:mu
	// the time of the restored connections; zero: there are none, or some could not be read
	restoredAsOf time.Time // +checklocks:mu
	// when connections were last written
	saved time.Time // +checklocks:mu
	// writes that failed
	failures uint64 // +checklocks:mu
}

const (
	keepInterval = 30 * time.Second // between two writes of connections
	lookInterval = time.Second      // between two looks at the peer's address

	// The file may belong to a gateway with a larger table, or be damaged, so no more is read than
	// fits into the table.
	maxRecord     = 160     // bytes, of TCP over IPv6 with large counters
	maxRecordRest = 8 << 20 // for clients of services, and for what blocks leave unused
)

// openKeeper locks the folder of c's peering and reads what the previous gateway left there. It
// fails only if another gateway uses the folder. Files that cannot be used are logged and ignored.
func openKeeper(life *Life, c *config.Config) (*keeper, error) {
	k := &keeper{log: life.Log, current: life.Current, gone: life.gone, asOf: life.AsOf}
	k.identity = state.Identity{Cluster: c.Cluster, PortKey: newPortKey()}
	if life.taken != nil {
		k.identity = life.taken.identity
	}
	if c.State == "" {
		return k, nil
	}
	var err error
	if k.dir = life.taken.folder(c); k.dir != nil {
		k.written, _ = k.dir.Identity(c.Cluster) // usually unchanged, and a write would delay the first packets
		return k, nil
	}
	k.dir, err = state.Open(c.State, c.Peer)
	if errors.Is(err, state.ErrInUse) {
		return nil, err
	}
	if err != nil {
		k.dir = nil
		life.Log.WithError(err).Warn("state: nothing can be kept: a restart will cost translated connections")
		return k, nil
	}
	if life.taken != nil { // the files are older than what was handed over
		return k, nil
	}
	switch before, err := k.dir.Identity(c.Cluster); {
	case err == nil:
		k.identity, k.written, k.pending = before, before, true
	case errors.Is(err, fs.ErrNotExist):
		k.pending = true
	default:
		life.Log.WithError(err).WithField("folder",
			k.dir.Path()).Warn("state: the identity there cannot be used: a new one takes its place")
		k.pending = !errors.Is(err, state.ErrForeign) // nor are its connections ours
	}
	if k.identity != k.written {
		k.keepIdentity() // before a port is chosen by its key
	}
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
	f, asOf, err := k.dir.Connections()
	if errors.Is(err, fs.ErrNotExist) {
		return
	}
	if err == nil {
		defer f.Close()
		r := k.engine.Restore(links.Find, path.Now())
		most := int64(k.engine.Stats().MaxConnections)*maxRecord + maxRecordRest
		_, err = io.Copy(r, io.LimitReader(f, most))
		k.restored = restored{r.End()}
		if k.restored.Whole && !asOf.After(time.Now()) { // a time to come means that the clock has been set back
			k.restoredAsOf = asOf
		}
	}
	k.tell(err)
}

// tell logs in one line what was restored, and what was not and why.
//
// +checklocks:k.mu
func (k *keeper) tell(err error) {
	r := &k.restored
	entry := k.log.WithFields(logrus.Fields{"connections": r.Connections, "clients": r.Clients})
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
	if k.dir == nil {
		return
	}
	tick := time.NewTicker(lookInterval)
	defer tick.Stop()
	due := time.Now().Add(keepInterval)
	for {
		k.look()
		now := time.Now()
		round := !now.Before(due)
		k.writing.Lock()
		if k.left.Load() {
			round = false
		} else if k.known() != k.written && (round || !k.broken) {
			k.keepIdentity()
		}
		if round {
			due = now.Add(keepInterval)
			k.keepConnections(func() { time.Sleep(sweep.Pause) })
		}
		k.writing.Unlock()
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
	if k.dir == nil {
		return
	}
	defer k.dir.Close()
	select {
	case <-k.gone:
		return
	default:
	}
	if k.known() != k.written {
		k.keepIdentity()
	}
	k.keepConnections(func() {})
}

// leave stops writing until stay is called, because another process may own the folder.
func (k *keeper) leave() {
	k.writing.Lock() // waits for the write in progress
	defer k.writing.Unlock()
	k.left.Store(true)
}

func (k *keeper) stay() {
	if k.left.Swap(false) && k.dir != nil {
		k.dir.Sign()
	}
}

// took records what was handed over.
func (k *keeper) took(r nat.Restored) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.restored = restored{r}
	k.tell(nil)
}

// lockFile is the lock that another process needs to own the folder; nil = none.
func (k *keeper) lockFile() *os.File {
	if k.dir == nil {
		return nil
	}
	return k.dir.LockFile()
}

// close unlocks the folder and changes nothing in it. A nil keeper has no folder.
func (k *keeper) close() {
	if k != nil && k.dir != nil {
		k.dir.Close()
	}
}

func (k *keeper) keepIdentity() {
	identity := k.known()
	err := k.dir.KeepIdentity(&identity)
	if err == nil {
		k.written = identity
	}
	k.note(err)
}

// keepConnections writes all connections. It calls pause between them, so that packets can pass.
func (k *keeper) keepConnections(pause func()) {
	k.mu.Lock()
	pending := k.pending
	k.mu.Unlock()
	if pending {
		return // the file has more than the table
	}
	_, links := k.current.Get()
	err := k.dir.KeepConnections(k.asOf(), func(w io.Writer) error {
		return k.engine.Records(0, path.Now(), links.Name).Write(w, pause)
	})
	if err == nil {
		k.mu.Lock()
		k.saved = time.Now()
		k.mu.Unlock()
	}
	k.note(err)
}

// note counts a failed write, and logs it if the previous write succeeded.
func (k *keeper) note(err error) {
	if err != nil {
		k.mu.Lock()
		k.failures++
		k.mu.Unlock()
		if !k.broken {
			k.log.WithError(err).Warn(
				"state: cannot be written: a restart would cost connections; make room, and the folder writable")
		}
	} else if k.broken {
		k.log.Info("state: is written again")
	}
	k.broken = err != nil
}

// peer is the peer of w, and its last known address.
func (k *keeper) peer(w *config.WireGuard) wg.Peer {
	return wg.Peer{PublicKey: w.PeerPublicKey, Endpoint: w.Endpoint, Last: k.lastOf(w), Keepalive: w.Keepalive}
}

// newPortKey returns a random key for nat's port choice.
func newPortKey() (key [16]byte) {
	rand.Read(key[:])
	return key
}
