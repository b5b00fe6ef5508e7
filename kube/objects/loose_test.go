package objects

import "testing"

// Addresses are read as kube-proxy reads them: decimal, whatever zeros they begin with. Everything
// else is as strict as elsewhere.
func TestLooseAddresses(t *testing.T) {
	for s, want := range map[string]string{
		"10.96.011.012": "10.96.11.12", "198.051.100.007": "198.51.100.7", "010.000.0.08": "10.0.0.8",
		"fd00::1": "fd00::1", "::ffff:010.0.0.01": "10.0.0.1",
		"10.96.0256.1": "", "10.96.1": "", "": "", "10.96.0.": "", "10..0.1": "", "0x10.0.0.1": "", "010.0.0.1.1": "",
		"-010.0.0.1": "",
	} {
		if a, err := ParseAddr(s); (err == nil) != (want != "") || err == nil && a.String() != want {
			t.Errorf("%q: %v %v, want %q", s, a, err, want)
		}
	}
	for s, want := range map[string]string{
		"172.018.000.000/24": "172.18.0.0/24", "172.18.0.0/024": "172.18.0.0/24", "fd00::/064": "fd00::/64",
		"10.0.0.0/0": "10.0.0.0/0",
		"10.0.0.0":   "", "::ffff:10.0.0.0/104": "", "10.0.0.0/33": "", "10.0.0.0/": "", "010.0.0/8": "",
	} {
		if p, err := ParsePrefix(s); (err == nil) != (want != "") || err == nil && p.String() != want {
			t.Errorf("%q: %v %v, want %q", s, p, err, want)
		}
	}
}
