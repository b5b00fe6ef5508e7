package liqo

import "testing"

// nat accepts every spec that is found valid here, so no condition is True for rules that do not
// exist.
func FuzzSpec(f *testing.F) {
	for _, capture := range captures {
		for _, o := range loadCapture(f, capture) {
			if o.Kind == KindFirewall || o.Kind == KindRoute {
				f.Add(o.Kind == KindRoute, []byte(o.Spec))
			}
		}
	}
	f.Fuzz(func(t *testing.T, route bool, spec []byte) {
		o := &Object{Kind: KindFirewall, Spec: spec}
		if route {
			o.Kind = KindRoute
		}
		it := &item{}
		var wrong faults
		self := gatewayOf("cluster-b")
		it.parse(o, &self, &wrong)
		if len(wrong) > 0 {
			return
		}
		if err := accepted(it.parsed.(*piece).Resource); err != nil {
			t.Errorf("%v", err)
		}
	})
}
