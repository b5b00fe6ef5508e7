package fault

import (
	"reflect"
	"regexp"
	"strings"
	"testing"

	"culvert/gateway/health"
	"culvert/gateway/node"
	"culvert/integration/lab"
)

// TestFaultsAreWhole wants each fault to say all there is to say, and to break
// something: a configuration, a process or a kernel.
func TestFaultsAreWhole(t *testing.T) {
	seen, named := make(map[string]bool), 0
	for _, f := range All() {
		if f.Name == "" || f.Does == "" || f.Cause == "" || f.Remedy == "" || f.Symptom == nil || seen[f.Name] ||
			seen[f.Cause] {
			t.Errorf("%+v: something is empty, or another fault's", f)
		}
		seen[f.Name], seen[f.Cause] = true, true
		switch {
		case (f.Named == nil) == (f.Untold == ""):
			t.Error(f.Name, "is named by a status, or there is something that none can tell")
		case f.Named != nil:
			named++
		}
		for n := f.Named; n != nil; n = n.Or {
			if !saidOf(n) {
				t.Errorf("%s: %q is no sentence of cause %s", f.Name, n.Says, n.Cause)
			}
		}
		if len(f.files) == 0 && f.off == "" && len(f.kernel) == 0 && f.load == nil {
			t.Error(f.Name, "breaks nothing")
		}
		l := &Lab{Lab: &lab.Lab{Options: lab.Standard(node.VXLAN, true)}}
		for host, change := range f.files {
			before, after := l.Configs()[host], l.Configs()[host]
			if before == nil {
				t.Fatal(f.Name, "changes the configuration of", host)
			}
			if change(after, node.VXLAN); reflect.DeepEqual(before, after) {
				t.Errorf("%s leaves the configuration of %s as it is", f.Name, host)
			}
		}
	}
	page := Page()
	for _, f := range All() {
		if strings.Count(page, "\n- `"+f.Name+"`: ") != 1 {
			t.Errorf("the page of faults has no section for %s: %q", f.Name, f.Symptom)
		}
	}
	if total := len(All()); total < 40 || named < 36 {
		t.Errorf("%d of %d faults are named, want 36 of 40 at least", named, total)
	}
}

// saidOf reports whether the sentence is one of its cause, whose blanks it has filled in.
func saidOf(n *Named) bool {
	for _, c := range health.Causes() {
		if c.Name == n.Cause {
			return regexp.MustCompile("^" + regexp.MustCompile(`\\\{\w+\\\}`).ReplaceAllString(regexp.QuoteMeta(c.Says),
				".+") + "$").MatchString(n.Says)
		}
	}
	return false
}
