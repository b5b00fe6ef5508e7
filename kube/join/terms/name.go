package terms

import (
	"regexp"
	"strings"

	"culvert/gateway/configfile"
)

var label = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]*[a-z0-9])?$`)

// reserved would give a gateway the account of culvert multicluster.
const reserved = "multicluster"

// CheckName records the faults of a cluster's ID. A Peering's name is the ID of the peer.
func CheckName(e *configfile.Errors, field, name string) {
	switch {
	case name == "":
		e.Missing(field)
	case len(name) > MaxName || !label.MatchString(name):
		e.Add(field,
			"%q is no name of a cluster: want at most %d small letters, digits and dashes, a letter or digit first and last", name, MaxName)
	case name == reserved:
		e.Add(field, "%q: culvert-%[1]s is culvert's own account for multi-cluster Services; choose another name", name)
	}
}

// NameOf makes the ID of a cluster from the name of its context: the part after the last separator,
// which ends users, accounts and regions, as in kubernetes-admin@rome, gke_project_zone_rome and
// arn:aws:eks:region:account:cluster/rome. It is "" if nothing is left.
func NameOf(context string) string {
	context = strings.ToLower(context[strings.LastIndexAny(context, "@/_:")+1:])
	name := strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= '0' && r <= '9' {
			return r
		}
		return '-'
	}, context)
	return strings.Trim(name[:min(len(name), MaxName)], "-")
}

// Own returns the cluster's ID according to its Peerings; "" if there are none, or if they
// disagree.
func (s *Survey) Own() (name string) {
	for _, spec := range s.specs {
		if name != "" && name != spec.Cluster {
			return ""
		}
		name = spec.Cluster
	}
	return name
}
