package lifecycle

import (
	"net/netip"
	"os"
	"slices"
	"strconv"
	"time"

	"culvert/gateway/handover"
	"culvert/geneve/udp"
)

// busy reports whether finish still runs.
func (t *Taking) busy() bool {
	if t == nil {
		return false
	}
	select {
	case <-t.over:
		return false
	default:
		return true
	}
}

// finish carries the packets that the old process decrypts. It lets that process exit only after
// overlapTime, so that there is a gateway if this process dies before.
func (t *Taking) finish(life *Life) {
	if t == nil {
		return
	}
	defer close(t.over)
	defer t.close()
	for _, l := range life.lent {
		switch socket, err := t.former(l); {
		case err != nil:
			life.Log.WithError(err).WithField("socket",
				l.name).Warn("packets that the peer still sends to the previous gateway's port are lost")
		case socket != nil:
			t.old = append(t.old, socket)
			go l.conn.Drain(socket, t.relay)
		}
	}
	for _, s := range t.offer.Sockets {
		// elsewhere here, and left to this process
		if (s.Name == "control" || s.Name == "uapi") && t.files[s.Name] != nil {
			os.Remove(s.At)
		}
	}
	returned := make(chan struct{})
	go func() {
		defer close(returned)
		for p := range t.relay.Packets() {
			if take := life.path.Diverted(); take != nil {
				take([][]byte{p}, 0)
			}
		}
	}()
	// A peer that knows the session answers in it after one round trip.
	wait := max(greetTime, 3*t.far/2)
	over, renew := time.NewTimer(time.Until(t.forwards.Add(overlapTime))), time.NewTimer(wait)
	defer over.Stop()
	defer renew.Stop()
	for done := false; !done; {
		select {
		case <-over.C:
			done = true
		case <-renew.C:
			if !t.relay.Met() && !t.relay.Quiet(quietTime) {
				life.path.WG.Renew() // the peer has started a session with the old process since
			}
			wait *= 2 // WireGuard would repeat a lost handshake after five seconds
			renew.Reset(wait)
		}
	}
	for i := range life.lent {
		life.lent[i].conn.Own()
	}
	t.line.Send(handover.KindDone, nil, time.Second)
	select {
	case <-returned: // the old process has ended
	case <-time.After(doneTime):
	}
	t.relay.Close()
	<-returned
	life.path.Divert(nil)
	if _, lost := t.relay.Totals(); lost > 0 {
		life.Log.WithField("lost", lost).Warn("packets of the previous gateway's session were lost for lack of room")
	}
}

// former returns the old process's counterpart of WireGuard's socket l if it has another port, else
// nil.
func (t *Taking) former(l lentSocket) (udp.Conn, error) {
	at := l.conn.LocalAddr()
	i := slices.IndexFunc(t.offer.Sockets, func(s handover.Socket) bool { return s.Name == l.name })
	if l.name == "geneve" || i < 0 {
		return nil, nil
	}
	port, err := strconv.ParseUint(t.offer.Sockets[i].At, 10, 16)
	if err != nil || uint16(port) == at.Port() {
		return nil, err
	}
	if t.open == nil {
		return udp.Adopt(t.files[l.name], udp.Options{})
	}
	network := "udp6"
	if at.Addr().Is4() {
		network = "udp4"
	}
	return t.open(network, netip.AddrPortFrom(at.Addr(), uint16(port)))
}

// close closes the connection to the old process. It may be called more than once.
func (t *Taking) close() {
	t.line.Close()
	if t.relay != nil {
		t.relay.Close()
	}
	for _, c := range t.old {
		c.Close()
	}
	t.files.Close()
	if t.before != nil {
		t.before.close()
		t.before = nil
	}
}
