package nat

import "testing"

// TestSlabValues: values are zero, and none has memory of another, whether they are alone or in a block.
func TestSlabValues(t *testing.T) {
	type value [slabBlock / 5]byte // of which a block has room for five
	var s slab[value]
	var all []*value
	for i := range 5 + 2*5 + 1 {
		v := s.next()
		if *v != (value{}) {
			t.Fatalf("value %d is not zero", i)
		}
		for j := range v {
			v[j] = byte(i + 1)
		}
		all = append(all, v)
	}
	for i, v := range all {
		for j := range v {
			if v[j] != byte(i+1) {
				t.Fatalf("value %d has memory of value %d", i, v[j]-1)
			}
		}
	}
}
