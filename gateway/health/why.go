package health

import "strings"

// Why says in words why one packet was dropped, and what to do; "" if the reason says all, or if
// that is what should happen to packets now and then.
func (d *Drop) Why(p *Peer) string {
	c := d.cause()
	switch c {
	case nil:
		return ""
	case RuleDrops:
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

// fill replaces the blanks of sentences about d, but for the count.
func (d *Drop) fill(p *Peer) *strings.Replacer {
	of := d.Node
	if d.Inbound {
		of = p.Name
	}
	return strings.NewReplacer("{of}", of, "{node}", d.Node, "{source}", d.Source.String(), "{destination}", d.Destination.String(),
		"{owner}", d.Owner, "{role}", p.Role, "{rule}", d.Rule, "{reason}", d.Reason)
}
