package join

import (
	"net/netip"
	"reflect"
	"strings"
	"testing"

	"culvert/integration/need"
	"culvert/kube/deploy"
	"culvert/kube/join/terms"
	"culvert/kube/manifests"
	"culvert/kube/peering"
)

// TestLacksGateway: join says at once what another program has to do before it can go on, and only
// then.
func TestLacksGateway(t *testing.T) {
	wants := &manifests.Gateway{Peering: "milan", Image: "x", Expose: "ClusterIP", Replicas: 2}
	for _, c := range []struct {
		owner    string
		replicas int // of the gateway that is there
		want     string
	}{
		{"", 0, ""}, // join makes it
		{"Helm's release kube-system/culvert", 1, ""},
		{"Helm's release kube-system/culvert", 0,
			"set peerings: [{name: milan, expose: ClusterIP, replicas: 2}] in the values of " +
				"Helm's release kube-system/culvert, then run the same command again"},
	} {
		had := &manifests.Gateway{Peering: "milan", Image: "x", Replicas: c.replicas}
		e := &End{plan: &deploy.Plan{Owner: c.owner}, had: had, wants: wants}
		err := e.lacksGateway()
		if (err == nil) != (c.want == "") || err != nil && !strings.HasSuffix(err.Error(), c.want) {
			t.Errorf("%q, %d pods: %v, want %q", c.owner, c.replicas, err, c.want)
		}
	}
}

// TestDecide: a flag counts more than given values, and these more than what is there. Without new
// values, those of the last time stay.
func TestDecide(t *testing.T) {
	values := func(text string) *manifests.Values {
		v, err := manifests.ReadValues("", []byte(text))
		need.NoError(t, err)
		return v
	}
	old := values("agents: {labels: {a: b}}")
	given := values("image: given\ndigest: sha256:" + strings.Repeat("0", 64) + "\nimagePullPolicy: Always\n" +
		"peerings: [{name: milan, expose: NodePort, replicas: 3, imports: there}, {name: turin, expose: ClusterIP}]")
	had := manifests.Gateway{Peering: "milan", Image: "old", Expose: "LoadBalancer", Replicas: 2, Values: old}
	with := func(change func(*manifests.Gateway)) manifests.Gateway {
		g := had
		change(&g)
		return g
	}
	for name, c := range map[string]struct {
		role    string
		options Options
		given   *manifests.Values
		want    manifests.Gateway
		values  string // line about values
	}{
		"as it is": {"Server", Options{}, nil, had, "agents: as they are"},
		"the same": {"Server", Options{}, values(old.Text()), had, "agents: as they are"},
		"none any more": {"Server", Options{}, values(""), with(func(g *manifests.Gateway) { g.Values = values("") }),
			""},
		"given": {"Client", Options{}, given, manifests.Gateway{Peering: "milan", Image: given.Image(),
			Expose: "NodePort", Replicas: 3, Imports: "there", Values: given},
			"digest, image, imagePullPolicy, peerings: --values"},
		"of another peering": {"Client", Options{}, values("peerings: [{name: turin, expose: NodePort, replicas: 3}]"),
			with(func(g *manifests.Gateway) {
				g.Expose, g.Values = "ClusterIP", values("peerings: [{name: turin, expose: NodePort, replicas: 3}]")
			}), "peerings: --values"},
		"flags": {"Server", Options{Image: "flag", Expose: "LoadBalancer", Replicas: 1}, given, manifests.Gateway{
			Peering: "milan", Image: "flag", Expose: "LoadBalancer", Replicas: 1, Imports: "there", Values: given},
			"digest, image, imagePullPolicy, peerings: --values"},
	} {
		s := &Site{options: &c.options, wishes: &Wishes{Values: c.given},
			Found: &terms.Cluster{Address: netip.MustParseAddr("192.0.2.1")}}
		e := &End{Site: s, Spec: &peering.Spec{Peer: "milan", Role: c.role}, had: &had}
		need.NoError(t, e.decide())
		if e.Spec.Imports != c.want.Imports || e.wants.Values.Text() != c.want.Values.Text() {
			t.Errorf("%s: imports %q, values %q", name, e.Spec.Imports, e.wants.Values.Text())
		}
		if e.wants.Values = c.want.Values; *e.wants != c.want {
			t.Errorf("%s: %+v, want %+v", name, *e.wants, c.want)
		}
		line := ""
		for _, l := range e.Lines {
			if l.What == "values" {
				line = l.Value + ": " + l.Source
			}
		}
		if line != c.values {
			t.Errorf("%s: %q, want %q", name, line, c.values)
		}
	}
}

// TestDecideAdmission: --admit decides what the peer may open connections to, and without it that
// stays as it is.
func TestDecideAdmission(t *testing.T) {
	for _, c := range []struct{ flag, had, want, source string }{
		{"", "", "", ""}, {"", "Exports", "Exports", "as it is"}, {"exports", "", "Exports", "--admit"},
		{"exports", "Exports", "Exports", "--admit"}, {"all", "Exports", "", "--admit"}, {"all", "", "", "--admit"},
	} {
		s := &Site{options: &Options{Admit: c.flag}, wishes: &Wishes{}, Found: &terms.Cluster{}}
		e := &End{Site: s, Spec: &peering.Spec{Peer: "milan", Role: "Client", Admit: c.had},
			had: &manifests.Gateway{Peering: "milan", Image: "old"}}
		need.NoError(t, e.decide())
		source := ""
		for _, l := range e.Lines {
			if l.What == "admits" {
				source = l.Source
			}
		}
		if e.Spec.Admit != c.want || source != c.source {
			t.Errorf("--admit %q where it is %q: %q by %q, want %q by %q", c.flag, c.had, e.Spec.Admit, source, c.want,
				c.source)
		}
	}
}

// TestShare: --services decides whose Services the clusters share, in both directions, and without
// it that stays as it is. Whoever shares runs culvert multicluster, which stays until none is to.
func TestShare(t *testing.T) {
	both := func(names ...string) peering.SpecServices {
		return peering.SpecServices{Export: names, Import: names}
	}
	one := peering.SpecServices{Import: []string{"pay"}}
	for name, c := range map[string]struct {
		flag   []string
		had    peering.SpecServices
		runs   bool // culvert multicluster does already
		values string
		want   peering.SpecServices
		on     bool
		fails  string
	}{
		"nothing":              {},
		"given":                {flag: []string{"shop", "pay"}, want: both("shop", "pay"), on: true},
		"given anew":           {flag: []string{"*"}, had: one, want: both("*"), on: true},
		"as it is":             {had: one, want: one, on: true},
		"none":                 {flag: []string{}, had: both("*"), runs: true},
		"none, yet the values": {flag: []string{}, runs: true, values: "multicluster: {enabled: true}", on: true},
		"another's":            {runs: true, on: true},
		"by the values":        {values: "multicluster: {enabled: true}", on: true},
		"others run it":        {had: one, values: "multicluster: {enabled: false}", want: one},
		"not by the values":    {runs: true, values: "multicluster: {enabled: false}"},
		"against the values":   {flag: []string{"*"}, values: "multicluster: {enabled: false}", fails: "--services: "},
		"by values of a copy":  {had: one, values: "multicluster: {replicas: 3}", want: one, on: true},
		"none, not the values": {flag: []string{}, had: one, values: "multicluster: {enabled: false}"},
	} {
		values, err := manifests.ReadValues("", []byte(c.values))
		need.NoError(t, err)
		s := &Site{options: &Options{Services: c.flag}, wishes: &Wishes{Values: values}, Found: &terms.Cluster{}}
		e := &End{Site: s, Spec: &peering.Spec{Peer: "milan", Role: "Client", Services: c.had},
			had: &manifests.Gateway{Peering: "milan", Image: "old", Multicluster: c.runs}}
		if err = e.decide(); (err == nil) != (c.fails == "") || err != nil && !strings.HasPrefix(err.Error(), c.fails) {
			t.Errorf("%s: %v, want %q", name, err, c.fails)
		}
		if err == nil && (!reflect.DeepEqual(e.Spec.Services, c.want) || e.wants.Multicluster != c.on) {
			t.Errorf("%s: %+v, culvert multicluster %t; want %+v, %t", name, e.Spec.Services, e.wants.Multicluster,
				c.want, c.on)
		}
	}
}

// TestPushLacks: an image without a program for some nodes is refused, and what they need is named.
func TestPushLacks(t *testing.T) {
	found := &terms.Cluster{Archs: []string{"amd64", "arm64", "s390x"}}
	for _, c := range []struct {
		archs []string // nil: nothing is pushed
		want  string
	}{
		{nil, ""}, {[]string{"s390x", "arm64", "amd64"}, ""}, {[]string{"arm64"}, "amd64 and s390x"},
	} {
		s := &Site{options: &Options{Archs: c.archs}, Found: found}
		if got := s.lacks(); got != c.want {
			t.Errorf("%v: %q, want %q", c.archs, got, c.want)
		}
	}
}
