package lab

import (
	"reflect"
	"testing"

	"culvert/gateway/node"
)

// TestFaultsAreWhole wants each fault to say all there is to say, and to break
// something: a configuration, a process or a kernel.
func TestFaultsAreWhole(t *testing.T) {
	seen := make(map[string]bool)
	for _, f := range Faults() {
		if f.Name == "" || f.Does == "" || f.Cause == "" || f.Remedy == "" || f.Symptom == "" || seen[f.Name] || seen[f.Cause] {
			t.Errorf("%+v: something is empty, or another fault's", f)
		}
		seen[f.Name], seen[f.Cause] = true, true
		if len(f.files) == 0 && f.off == "" && len(f.kernel) == 0 {
			t.Error(f.Name, "breaks nothing")
		}
		l := &Lab{options: Standard(node.VXLAN, true)}
		for host, change := range f.files {
			before, after := l.configs()[host], l.configs()[host]
			if before == nil {
				t.Fatal(f.Name, "changes the configuration of", host)
			}
			if change(after, node.VXLAN); reflect.DeepEqual(before, after) {
				t.Errorf("%s leaves the configuration of %s as it is", f.Name, host)
			}
		}
	}
}
