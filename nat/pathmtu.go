package nat

import (
	"hash/maphash"
	"net/netip"
	"time"
)

const (
	// pathLifetime is how long a path MTU that was lowered stays so (RFC 1191, Section 6.3: 10 minutes).
	pathLifetime = 10 * time.Minute
	// minPathMTU is the lowest path MTU that a too-big message can bring about, as Linux's min_pmtu: a forged one must not
	// make segments tiny. For IPv6 it is minMTU6.
	minPathMTU = 552
	pathSlots  = 1024
)

// A pathTable remembers the path MTU towards destinations. It is direct-mapped: a newer path takes the slot of an older one.
type pathTable struct {
	seed  maphash.Seed
	until Time // when the last entry expires
	slots [pathSlots]path
}

type path struct {
	destination [16]byte
	expires     Time
	mtu         uint16
	tunnel      bool // the destination is reached through the tunnel
	v6          bool
}

func (pt *pathTable) init() { pt.seed = maphash.MakeSeed() }

func (pt *pathTable) slot(a *[16]byte) *path {
	return &pt.slots[maphash.Bytes(pt.seed, a[:])%pathSlots]
}

// learn lowers the path MTU towards a destination, as addressed beyond the gateway, for pathLifetime.
func (pt *pathTable) learn(a netip.Addr, tunnel bool, mtu int, now Time) {
	low := minPathMTU
	if a.Is6() {
		low = minMTU6
	}
	key := a.As16()
	s := pt.slot(&key)
	mtu = max(mtu, low)
	if s.destination == key && s.tunnel == tunnel && s.v6 == a.Is6() && s.expires > now && int(s.mtu) < mtu {
		return // RFC 1191, Section 6.3: only an expired estimate grows
	}
	*s = path{destination: key, expires: now.Add(pathLifetime), mtu: uint16(mtu), tunnel: tunnel, v6: a.Is6()}
	pt.until = max(pt.until, s.expires)
}

// live reports whether any path MTU is remembered.
func (pt *pathTable) live(now Time) bool { return now < pt.until }

// lookup returns the path MTU towards a destination, 0 if none was learnt.
func (pt *pathTable) lookup(a netip.Addr, tunnel bool, now Time) int {
	key := a.As16()
	s := pt.slot(&key)
	if s.destination != key || s.tunnel != tunnel || s.v6 != a.Is6() || s.expires <= now {
		return 0
	}
	return int(s.mtu)
}
