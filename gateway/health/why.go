package health

import "strings"

// Why explains why one packet was dropped, with a remedy; "" if the reason says it all, or if it is
// normal for occasional packets.
func (d *Drop) Why(p *Peer) string {
	c := d.cause()
	if c == nil {
		return ""
	}
	byRule := c == RuleDrops
	switch {
	case p.Liqo:
		c = c.Liqo()
	case p.Peering:
		c = c.Peering()
	}
	if byRule {
		return d.fill(p).Replace("rule {rule} refuses it: " + c.Remedy)
	}
	says := c.Sentence()
	if _, after, ok := strings.Cut(says, "dropped as "); ok { // the count and the reason are known
		if _, says, ok = strings.Cut(after, ": "); !ok {
			says = c.Remedy
		}
	}
	return d.fill(p).Replace(says)
}

// fill replaces the placeholders about d, except the count.
func (d *Drop) fill(p *Peer) *strings.Replacer {
	of := d.Node
	if d.Inbound {
		of = p.Name
	}
	return strings.NewReplacer("{of}", of, "{node}", d.Node, "{source}", d.Source.String(), "{destination}",
		d.Destination.String(),
		"{owner}", d.Owner, "{role}", p.Role, "{rule}", d.Rule, "{reason}", d.Reason)
}
