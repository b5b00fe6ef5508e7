package verify

import (
	"cmp"
	"fmt"
	"net/netip"
	"strings"
	"time"

	"culvert/kube/verify/probe"
)

// A Report is the result of a run.
type Report struct {
	Clusters []Joined  `json:"clusters"`
	Paths    []Path    `json:"paths"`
	Findings []Finding `json:"findings"`
	OK       bool      `json:"ok"` // no finding is wrong
}

// Joined is one of the two clusters.
type Joined struct {
	Context string `json:"context"`
	Cluster string `json:"cluster"`
	Peering string `json:"peering"`
	Gateway string `json:"gateway,omitempty"` // node/pod
	Asked   int    `json:"nodesAsked"`
	Nodes   int    `json:"nodes"`
}

// A Path is the result for the path from one place to another.
type Path struct {
	Kind string `json:"kind"`
	From string `json:"from"` // cluster/node
	To   string `json:"to"`
	// Family is IPv4 or IPv6 where paths of both are tried.
	Family string `json:"family,omitempty"`
	probe.Answer
	Want   string   `json:"wantSeen,omitempty"` // the address under which the far end should see the asker
	Faults []string `json:"faults,omitempty"`   // in few words

	from, to         *Side
	fromNode, toNode string
	via              string // the node with the NodePort
	v6               bool
	mtu              int
	unknown          netip.Addr // address under which the far end sees hosts that are not pods
	target           netip.Addr // address for the asker; invalid: there is none
	port             int        // port of target; 0: the servers' own
	host             string     // name by which the target is asked; "": by its address
	headless         bool       // the name has no address while no pod is ready
}

// A Finding is one fault, or something worth knowing, in one sentence with its remedy.
type Finding struct {
	Cluster string `json:"cluster,omitempty"` // "" = both
	Wrong   bool   `json:"wrong"`
	Text    string `json:"text"`
}

const (
	// fewDatagrams is how many datagrams of the better of two bursts may be lost.
	fewDatagrams = 2
)

// judge finds faults in the path's answer by itself.
func (p *Path) judge() {
	fault := func(format string, args ...any) { p.Faults = append(p.Faults, fmt.Sprintf(format, args...)) }
	a := &p.Answer
	if a.Error == probe.NoDNS || a.Error == noService { // not a fault of culvert
		return
	}
	if p.empty() {
		a.Error = noAddress
		return
	}
	if a.Error != "" {
		fault("%s", a.Error)
		return
	}
	if p.Kind == KindName && p.Want != "" && a.Seen != p.Want {
		fault("DNS says %s", a.Seen)
	} else if p.Want != "" && a.Seen != p.Want {
		fault("the far end sees %s", a.Seen)
	}
	if u := a.UDP; u != nil && u.Answered < u.Sent-fewDatagrams {
		fault("%d of %d datagrams lost", u.Sent-u.Answered, u.Sent)
	}
	if s := a.Size; s != nil {
		switch most := p.most(); {
		case s.Largest < most:
			fault("packets of more than %d bytes do not pass, %d should", s.Largest, most)
		case s.Above == probe.Vanished:
			fault("nobody tells a sender of %d bytes that this is too much", s.Largest+1)
		}
	}
	if a.Bulk != nil && a.Bulk.Error != "" {
		fault("TCP: %s", a.Bulk.Error)
	}
}

// noService stands for the answer on a path by a NodePort of a family that the cluster's Services
// lack.
const noService = "no Service"

// noAddress stands for the answer about a name that rightly has none.
const noAddress = "no address"

// empty reports whether the path is the name of a headless Service that has no address now.
func (p *Path) empty() bool {
	return p.headless && p.Error != "" && p.Error != probe.NoZone && p.Error != probe.Failing
}

// most returns the size of packets that should pass.
func (p *Path) most() int {
	if own := p.Answer.Size.Own; own > 0 {
		return min(p.mtu, own)
	}
	return p.mtu
}

// Figures returns the cells of the path's line: whether it works, both ends, the answer, datagrams,
// size, rate, and the source that was seen.
func (p *Path) Figures() []string {
	state, cells := "ok", []string{"–", "–", "–", "–", "–"}
	a := &p.Answer
	switch {
	case len(p.Faults) > 0:
		state = "wrong"
	case a.Error != "":
		state = "–"
	}
	if a.Error != "" {
		cells[0] = a.Error
	} else {
		cells[0], cells[4] = round(a.RTT), cutSeen(a.Seen)
	}
	if a.UDP != nil {
		cells[1] = fmt.Sprintf("%d/%d", a.UDP.Answered, a.UDP.Sent)
	}
	if a.Size != nil {
		cells[2] = fmt.Sprint(a.Size.Largest)
	}
	if b := a.Bulk; b != nil {
		cells[3] = fmt.Sprintf("%.1f MB", float64(b.Bytes)/1e6)
		if b.Error == "" && b.Took > 0 {
			cells[3] = fmt.Sprintf("%.0f Mb/s", float64(b.Bytes)*8/1e6/b.Took.Seconds())
		}
	}
	from, to := p.From, p.To
	switch p.Kind {
	case KindNodePort:
		from += " NodePort"
	case KindService:
		to += p.service()
	}
	if p.Family != "" {
		to += " " + p.Family
	}
	return append([]string{state, from, to}, cells...)
}

// Columns are the column titles for Figures.
const Columns = "\tFROM\tTO\tANSWER\tUDP\tMTU\tTCP\tSEEN AS"

// Rows returns the Figures of all paths. Node names that would make the table wider than a page are
// cut; the report has them in full.
func (r *Report) Rows() (rows [][]string) {
	cut := r.cutPlaces()
	for i := range r.Paths {
		p := r.Paths[i]
		p.From, p.To = cut[p.From], cmp.Or(cut[p.To], p.To)
		if p.Kind == KindName && len(p.To) > placeWidth { // no node: its beginning tells more
			p.To = p.To[:placeWidth-1] + "…"
		}
		rows = append(rows, p.Figures())
	}
	return rows
}

// cutSeen cuts the beginning of an address of IPv6 that has no room beside the widest figures.
func cutSeen(a string) string {
	if len(a) > seenWidth && !strings.Contains(a, ".") {
		return "…" + a[len(a)-seenWidth+1:]
	}
	return a
}

const (
	seenWidth  = 15 // that of an address of IPv4
	placeWidth = 20 // room for each of two places beside the widest figures
	nodeWidth  = 8  // minimum room for node names, however long the cluster's name is
)

// cutPlaces returns the short form for a table of each place (a cluster and a node).
func (r *Report) cutPlaces() map[string]string {
	nodes, cut := map[string][]string{}, map[string]string{} // by cluster
	for i := range r.Paths {
		for _, place := range []string{r.Paths[i].From, r.Paths[i].To} {
			if r.Paths[i].Kind == KindName && place == r.Paths[i].To {
				continue // no node
			}
			if _, twice := cut[place]; !twice {
				cluster, node, _ := strings.Cut(place, "/")
				nodes[cluster], cut[place] = append(nodes[cluster], node), place
			}
		}
	}
	for cluster, all := range nodes {
		for i, name := range cutNames(all, max(placeWidth-len(cluster)-1, nodeWidth)) {
			cut[cluster+"/"+all[i]] = cluster + "/" + name
		}
	}
	return cut
}

// cutNames shortens names to at most most characters, if they still differ then. It first removes
// the domain, if all have the same, and then cuts their beginnings, which the nodes of a pool have
// in common.
func cutNames(all []string, most int) []string {
	_, domain, _ := strings.Cut(all[0], ".")
	names, short, seen := make([]string, len(all)), make([]string, len(all)), map[string]bool{}
	long, common := false, domain != ""
	for i, name := range all {
		names[i] = strings.TrimSuffix(name, "."+domain)
		long = long || len(name) > most
		common = common && names[i] != name
	}
	switch {
	case !long:
		return all
	case !common:
		copy(names, all)
	}
	for i, name := range names {
		if len(name) > most {
			name = "…" + name[len(name)-most+1:]
		}
		if short[i] = name; seen[name] {
			return names
		}
		seen[name] = true
	}
	return short
}

func round(d time.Duration) string {
	if d < time.Millisecond {
		return fmt.Sprintf("%d µs", d.Microseconds())
	}
	return fmt.Sprintf("%.1f ms", float64(d.Microseconds())/1000)
}

// name returns the path as part of a sentence.
func (p *Path) name() string {
	name := p.From + " to " + p.To
	switch p.Kind {
	case KindNodePort:
		name = fmt.Sprintf("%s by a NodePort to %s", p.From, p.To)
	case KindService, KindName:
		name += p.service()
	}
	return name + p.by()
}

// by returns the family as the end of a phrase, where two are tried.
func (p *Path) by() string {
	if p.Family == "" {
		return ""
	}
	return " by " + p.Family
}

// service returns the text that follows the far end on a path to an exported Service.
func (p *Path) service() string {
	if p.host != "" {
		return " by name"
	}
	return " Service"
}

// firstOf returns the first of several names, and how many more there are.
func firstOf(all []string) string {
	if len(all) > 2 {
		return fmt.Sprintf("%s and %d more", all[0], len(all)-1)
	}
	return strings.Join(all, " and ")
}
