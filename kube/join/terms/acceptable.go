package terms

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"culvert/gateway/wgkey"
	"culvert/kube/peering"
)

// Acceptable returns why a message of another cluster cannot be accepted in this one, whose ID is
// that of the addressee.
func (c *Cluster) Acceptable(i *Invitation) error {
	if own := c.ByKey(i.Key); own != "" {
		return fmt.Errorf("the message is this cluster's own: Peering %s has its key; send it to %s", own, i.To)
	}
	for _, name := range sortedKeys(c.specs) {
		s := c.specs[name]
		if s.Cluster != c.Name {
			return fmt.Errorf("the message is for %s, and this cluster is %s by its Peering %s", i.To,
				s.Cluster, s.Peer)
		}
		if name != i.From && (s.PublicKey == i.Key.Base64() || i.Endpoint != "" && s.Endpoint == i.Endpoint) {
			return fmt.Errorf(
				"the message is from %s, whose gateway is joined already, by Peering %s; leave that peering first",
				i.From, name)
		}
	}
	old := c.Old(i.From)
	key := ""
	if old != nil {
		key = old.PublicKey
	}
	switch {
	case i.Answers == "" && old == nil:
		return nil
	case i.Answers == "" && old.Role == "Server":
		return fmt.Errorf(
			"this cluster has invited %[1]s itself: accept the answer of %[1]s, or leave the peering first", i.From)
	case i.Answers != "" && (old == nil || c.Nonce(i.From) != i.Answers):
		return errors.New("the message answers no open invitation of this cluster: it is for another cluster, or a newer invitation has replaced the one it answers")
	case key != "" && key != i.Key.Base64():
		return fmt.Errorf("Peering %s already has another key of its peer: a message can be used once; leave the peering, then invite again", i.From)
	}
	return nil
}

// CheckOwn returns why the cluster cannot have its name: its Peerings have another one, by which
// its peers know it.
func (c *Cluster) CheckOwn() error {
	why := ""
	for _, peer := range sortedKeys(c.specs) {
		if c.specs[peer].Cluster == c.Name {
			return nil
		}
		why = fmt.Sprintf("this cluster is %s by its Peering %s, and cannot be %s as well", c.specs[peer].Cluster,
			peer, c.Name)
	}
	if why == "" {
		return nil
	}
	return fmt.Errorf("--name: %s; leave out --name, or leave the peering first", why)
}

// Old returns the spec of the Peering with a peer; nil if there is none.
func (c *Cluster) Old(peer string) *peering.Spec { return c.specs[peer] }

// Sharing returns a Peering, with none of some peers, that shares Services; "" if there is none.
func (c *Cluster) Sharing(but []string) string {
	for _, name := range sortedKeys(c.specs) {
		if c.specs[name].Services.Any() && !slices.Contains(but, name) {
			return name
		}
	}
	return ""
}

// Role returns the role of this cluster in the Peering with a peer; "" if there is none.
func (c *Cluster) Role(peer string) string { return c.old(peer).Role }

// Nonce returns the nonce of this cluster's invitation to a peer; "" if there was none.
func (c *Cluster) Nonce(peer string) string { return c.notes[peer][Annotation] }

// Reached returns the endpoint that was found for the Peering with a peer at the peer's Service,
// and not given by an administrator; "" if there is none.
func (c *Cluster) Reached(peer string) string { return c.notes[peer][EndpointAnnotation] }

// NodeAddress returns the address of a node, by which a NodePort is reached: that of an endpoint if
// it is still a node's.
func (c *Cluster) NodeAddress(endpoint string) netip.Addr {
	if at, err := netip.ParseAddrPort(endpoint); err == nil && slices.Contains(c.hosts, at.Addr()) {
		return at.Addr()
	}
	return c.Address
}

// ByKey returns the Peering whose gateway here has a public key; "" if none has.
func (c *Cluster) ByKey(key wgkey.Key) string {
	for _, p := range c.peerings {
		if p.Status.PublicKey == key.Base64() {
			return p.Metadata.Name
		}
	}
	return ""
}

// Nth returns the n-th address of a prefix, or the last one if it has fewer: the same host under
// each of its CIDRs.
func Nth(p netip.Prefix, n uint32) netip.Addr {
	a := p.Masked().Addr().AsSlice()
	if host := 8*len(a) - p.Bits(); host < 32 {
		n = min(n, 1<<host-1)
	}
	for i := len(a) - 1; n > 0; i-- {
		a[i] |= byte(n)
		n >>= 8
	}
	nth, _ := netip.AddrFromSlice(a)
	return nth
}
