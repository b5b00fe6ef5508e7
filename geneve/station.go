package geneve

import (
	"net"
	"net/netip"
)

// A Station is what is known about the other end of a tunnel: its neighbour entry.
type Station struct {
	ID    uint16
	MAC   net.HardwareAddr
	Encap Encap
	Local netip.Addr // our address that it sends to; the zero Addr is unknown
}

// Stations returns the known neighbour entries of tunnels that carry frames.
func (e *Endpoint) Stations() (all []Station) {
	for _, t := range e.table.Load().ids {
		if t == nil || t.Inner != Ethernet {
			continue
		}
		if is := t.neighbour.load(); is.mac() != 0 {
			s := Station{ID: t.ID, MAC: is.mac().address(), Encap: is.encap()}
			if local := t.local.Load(); local != nil {
				s.Local = *local
			}
			all = append(all, s)
		}
	}
	return all
}

// Meet adds s as a neighbour entry until the other end states its address, so that no packet waits
// for an answer.
func (e *Endpoint) Meet(s Station) {
	t := e.table.Load().byID(s.ID)
	if t == nil || t.Inner != Ethernet || len(s.MAC) != 6 || s.Encap > VXLAN || s.Encap == Auto || t.Encap != Auto &&
		t.Encap != s.Encap {
		return
	}
	e.neighbours.mu.Lock()
	defer e.neighbours.mu.Unlock()
	if t.local.Load() == nil && s.Local.BitLen() == t.Remote.BitLen() {
		t.heardAt(s.Local)
	}
	if t.neighbour.load().mac() == 0 {
		e.neighbours.learn(t, newSpeaker(s.Encap, parseMAC(s.MAC)), e.now())
	}
}
