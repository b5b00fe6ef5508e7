package lifecycle

import (
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"

	"culvert/gateway/config"
	"culvert/gateway/handover"
	"culvert/gateway/state"
	"culvert/gateway/wg"
	"culvert/geneve/udp"
)

// accept receives the old process's offer.
func (t *Taking) accept(c *config.Config) error {
	t.before = processOf(t.line.Peer())
	var err error
	if t.offer, t.files, err = t.line.WantOffer(); err != nil {
		return err
	}
	if t.identity, err = state.DecodeIdentity(t.offer.Identity); err != nil {
		return fmt.Errorf("what it says of itself is %w", err)
	}
	if at := t.port(); c.WireGuard.ListenPort != 0 && at != "" && at != strconv.Itoa(int(c.WireGuard.ListenPort)) {
		return fmt.Errorf("wireguard.listenPort: the running gateway has %s, and this configuration %d; restart it "+
			"to change the port", at, c.WireGuard.ListenPort)
	}
	if t.relay != nil {
		return nil
	}
	if t.files["relay"] == nil {
		return fmt.Errorf("%w: no relay", handover.ErrStrange)
	}
	conn, err := net.FileConn(t.files["relay"])
	if err != nil {
		return fmt.Errorf("relay: %w", err)
	}
	t.relay = handover.NewRelay(conn)
	return nil
}

// at returns the old process's file with a name, if it is at the same address.
func (t *Taking) at(name, address string) *os.File {
	if t == nil {
		return nil
	}
	for _, s := range t.offer.Sockets {
		if s.Name == name && s.At == address {
			return t.files[name]
		}
	}
	return nil
}

// socket returns the old process's UDP socket with a name; nil if it has none at the port. Port 0
// means any.
func (t *Taking) socket(name string, port uint16, o udp.Options) (*udp.Socket, error) {
	if t == nil {
		return nil, nil
	}
	f := t.at(name, strconv.Itoa(int(port)))
	if port == 0 {
		f = t.files[name]
	}
	if f == nil {
		return nil, nil
	}
	delete(t.files, name)
	defer f.Close()
	return udp.Adopt(f, o)
}

// port returns the port of the old process's WireGuard sockets; "" = it has none.
func (t *Taking) port() string {
	for _, s := range t.offer.Sockets {
		if strings.HasPrefix(s.Name, "wireguard") {
			return s.At
		}
	}
	return ""
}

// listener returns the old process's listener with a name at the configured address; nil if it has
// none there.
func (t *Taking) listener(name, address string) (net.Listener, error) {
	if t.at(name, address) == nil {
		return nil, nil
	}
	return t.files.Listener(name)
}

// ListenUAPI opens WireGuard's UAPI socket with a name, or uses the old process's.
func (life *Life) ListenUAPI(name string) (net.Listener, error) {
	if l, err := life.taken.listener("uapi", wg.UAPIPath(name)); l != nil || err != nil {
		return l, err
	}
	return wg.ListenUAPI(name)
}

// folder returns the old process's state folder, if c has the same one.
func (t *Taking) folder(c *config.Config) *state.Dir {
	if t == nil || t.files["lock"] == nil || c.State == "" {
		return nil
	}
	d := state.Adopt(c.State, c.Peer, t.files["lock"])
	if d != nil {
		delete(t.files, "lock")
	}
	return d
}

// hold keeps a new gateway's socket silent until the cut, because the old one shares it. It is
// called before there is anything to send.
func (t *Taking) hold(l *lentSocket) {
	switch {
	case t == nil:
	case l.name == "geneve":
		l.conn.Silence(nil)
	default:
		l.conn.Greet(t.relay, t.met)
	}
}
