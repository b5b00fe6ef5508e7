package join

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"k8s.io/client-go/rest"

	"culvert/integration/need"
	"culvert/kube/deploy"
	"culvert/kube/peering"
)

// TestReached: of two clusters both are needed, and of more any two. Nobody goes on after an
// interruption, even if all clusters have answered before.
func TestReached(t *testing.T) {
	interrupted, interrupt := context.WithCancel(t.Context())
	interrupt()
	for _, c := range []struct {
		ctx    context.Context
		absent string // a character for each cluster
		want   string
	}{
		{t.Context(), "..", "<nil>"}, {t.Context(), ".x", "1: no"}, {t.Context(), "x..", "<nil>"},
		{t.Context(), "x.x", "0: no\n2: no"}, {interrupted, "..", "context canceled"},
	} {
		p := &Plan{request: &Request{Options: &Options{}}}
		sites, errs := make([]*Site, len(c.absent)), make([]error, len(c.absent))
		for i, r := range c.absent {
			name := fmt.Sprint("cluster-", i)
			p.request.Contexts, p.request.Names = append(p.request.Contexts, name), append(p.request.Names, name)
			if sites[i] = (&Site{Context: name, Name: name, id: name}); r == 'x' {
				errs[i] = fmt.Errorf("%d: no", i)
			}
		}
		err := p.reached(c.ctx, sites, errs)
		if n := strings.Count(c.absent, "x"); fmt.Sprint(err) != c.want || len(p.Absent) != n ||
			len(p.Sites) != len(sites)-n {
			t.Errorf("%s: %v, %d absent, %d reached; want %s", c.absent, err, len(p.Absent), len(p.Sites), c.want)
		}
	}
}

// TestPairsOf: pairs are all, or those that are named, each once. What names no pair, or two, is
// refused.
func TestPairsOf(t *testing.T) {
	names := []string{"rome", "milan", "rome-milan", "milan-rome"}
	for text, want := range map[string]string{
		"": "[[rome milan] [rome rome-milan] [milan rome-milan] [rome milan-rome] [milan milan-rome] " +
			"[rome-milan milan-rome]]",
		"milan-rome":                       "[[rome milan]]",
		"rome-milan,milan-rome,rome-milan": "[[rome milan]]",
		"milan-milan-rome,rome-milan":      "[[milan milan-rome] [rome milan]]",
		"rome-milan,rome-milan-rome": `--pairs: "rome-milan-rome" may be rome and rome-milan or rome and milan-rome; ` +
			"give other names by --name",
		"rome-turin": `--pairs: "rome-turin" is no two clusters with a dash between them; they are rome, milan, ` +
			"rome-milan, milan-rome",
		"rome-rome": `--pairs: "rome-rome" is no two clusters`,
		"rome":      `--pairs: "rome" is no two clusters`,
	} {
		var texts []string
		if text != "" {
			texts = strings.Split(text, ",")
		}
		pairs, err := pairsOf(texts, names)
		got := fmt.Sprint(pairs)
		if err != nil {
			got = err.Error()
		}
		if !strings.HasPrefix(got, want) {
			t.Errorf("%q: %s, want %s", text, got, want)
		}
	}
}

// TestNamesOfAll: two clusters must not have the same name, even if one of them cannot be reached.
func TestNamesOfAll(t *testing.T) {
	for _, c := range []struct {
		contexts, names string
		want            string
	}{
		{"a@rome a@milan b@turin", "", ""},
		{"a@rome b@rome a@milan", "", "--name: the clusters of contexts a@rome and b@rome would both be rome; give each a name"},
		{"a@rome b@rome a@milan", "rome turin milan", ""},
		{"a@rome b@turin a@milan", "rome milan milan",
			"--name: the clusters of contexts b@turin and a@milan would both be milan; give each a name"},
	} {
		r := &Request{Options: &Options{}, Contexts: strings.Fields(c.contexts), Names: strings.Fields(c.names)}
		var reached []*Site
		for i, name := range r.names(nil) {
			if strings.HasPrefix(r.Contexts[i], "a@") {
				reached = append(reached, &Site{Context: r.Contexts[i], Name: name, id: r.Contexts[i]})
			}
		}
		got := ""
		if err := r.distinct(r.names(reached)); err != nil {
			got = err.Error()
		}
		if got != c.want {
			t.Errorf("%s, %s: %q, want %q", c.contexts, c.names, got, c.want)
		}
	}
}

// TestWishesOfNobody: a wish for a cluster that there is not is refused by its flag.
func TestWishesOfNobody(t *testing.T) {
	cidrs := []netip.Prefix{netip.MustParsePrefix("10.0.0.0/16")}
	for flag, w := range map[string]Wishes{"--pod-cidr": {Pods: cidrs}, "--service-cidr": {Services: cidrs},
		"--imports": {Imports: "there"}, "--values": {}} {
		r := &Request{Options: &Options{Wishes: map[string]*Wishes{"turin": &w}}}
		err := r.distinct([]string{"rome", "milan"})
		if want := flag + `: "turin" is the name of no cluster here; they are rome, milan`; err == nil ||
			err.Error() != want {
			t.Errorf("%v, want %s", err, want)
		}
	}
}

// TestResultsOfAll: a cluster that goes away at the end hides nothing about the other pairs.
func TestResultsOfAll(t *testing.T) {
	gone, err := deploy.New(&rest.Config{Host: "http://127.0.0.1:1"}) // nobody listens there
	need.NoError(t, err)
	ended := func(name, peer string) *End {
		return &End{Site: &Site{Name: name, Context: name, cluster: gone}, Title: name + " with " + peer,
			Spec: &peering.Spec{Peer: peer}}
	}
	p := &Plan{Absent: []error{errors.New("genoa: no")}, Pairs: []*Pair{
		{Ends: [2]*End{ended("rome", "milan"), ended("milan", "rome")}},
		{Ends: [2]*End{ended("rome", "turin"), ended("turin", "rome")}, Err: errors.New("turin with rome: no")}}}
	all, missing := p.Results(t.Context())
	var texts []string
	for _, err := range missing {
		text, _, _ := strings.Cut(err.Error(), ": Get")
		texts = append(texts, text)
	}
	want := []string{"genoa: no", "rome with milan: get Peering milan", "turin with rome: no"}
	if len(all) != 0 || !slices.Equal(texts, want) || p.Pairs[0].Err == nil {
		t.Errorf("%v, missing %q, want %q; the first pair: %v", all, texts, want, p.Pairs[0].Err)
	}
}
