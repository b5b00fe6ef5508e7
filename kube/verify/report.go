package verify

import (
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

// A Path is what was found on the way from one place to another.
type Path struct {
	Kind string `json:"kind"`
	From string `json:"from"` // cluster/node
	To   string `json:"to"`
	probe.Answer
	Want   string   `json:"wantSeen,omitempty"` // the address under which the far end should see the asker
	Faults []string `json:"faults,omitempty"`   // in few words

	from, to         *Side
	fromNode, toNode string
	via              string // the node with the NodePort
	mtu              int
	unknown          netip.Addr // under which the far end sees what is no pod
	target           netip.Addr // that the asker asks; invalid: there is none
	port             int        // of it; 0: that of servers
	host             string     // by which name it is asked; "": by its address
}

// A Finding is what is wrong, or worth to know, in one sentence with its remedy.
type Finding struct {
	Cluster string `json:"cluster,omitempty"` // "" = both
	Wrong   bool   `json:"wrong"`
	Text    string `json:"text"`
}

const (
	// fewDatagrams is how many of a burst may be lost, of two bursts the better one.
	fewDatagrams = 2
)

// judgePath finds what is wrong with an answer by itself.
func (p *Path) judge() {
	fault := func(format string, args ...any) { p.Faults = append(p.Faults, fmt.Sprintf(format, args...)) }
	a := &p.Answer
	if a.Error == probe.NoDNS { // which is nothing of culvert's
		return
	}
	if a.Error != "" {
		fault("%s", a.Error)
		return
	}
	if p.Want != "" && a.Seen != p.Want {
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

// most is how large packets should be able to be.
func (p *Path) most() int {
	if own := p.Answer.Size.Own; own > 0 {
		return min(p.mtu, own)
	}
	return p.mtu
}

// Figures returns the cells of the path's line: whether it is well, both ends, the answer, datagrams, size, rate, and who is seen.
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
		cells[0], cells[4] = round(a.RTT), a.Seen
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
	return append([]string{state, from, to}, cells...)
}

// Columns are the heads of Figures.
const Columns = "\tFROM\tTO\tANSWER\tUDP\tMTU\tTCP\tSEEN AS"

// Rows are the Figures of all paths. Where names of nodes would make the table wider than a page, they are cut; the report has them whole.
func (r *Report) Rows() (rows [][]string) {
	cut := r.cutPlaces()
	for i := range r.Paths {
		p := r.Paths[i]
		p.From, p.To = cut[p.From], cut[p.To]
		rows = append(rows, p.Figures())
	}
	return rows
}

const (
	placeWidth = 20 // of two places and the widest figures a page has room
	nodeWidth  = 8  // that names of nodes have whatever the cluster's is
)

// cutPlaces returns what stands for each place, a cluster and a node, in a table.
func (r *Report) cutPlaces() map[string]string {
	nodes, cut := map[string][]string{}, map[string]string{} // by cluster
	for i := range r.Paths {
		for _, place := range []string{r.Paths[i].From, r.Paths[i].To} {
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

// cutNames shortens names to at most so many characters, if they still differ then: first by the domain, where all have the same, and then by their
// beginnings, which the nodes of a pool have in common.
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

// name is the path in a sentence.
func (p *Path) name() string {
	if p.Kind == KindNodePort {
		return fmt.Sprintf("%s by a NodePort to %s", p.From, p.To)
	}
	if p.Kind == KindService {
		return p.From + " to " + p.To + p.service()
	}
	return p.From + " to " + p.To
}

// service is what stands behind the far end on a path to an exported Service.
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
