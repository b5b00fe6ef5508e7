package control

import (
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"culvert/integration/need"
)

// TestParametersRoundTrip: a server reads what a client writes.
func TestParametersRoundTrip(t *testing.T) {
	for _, o := range []CaptureOptions{
		{},
		{At: []string{"pre", "wireguard"}, Drops: true, Count: 1 << 40, Snaplen: 96},
		{Verdict: "drop", Reasons: []string{"filtered", "no-route"}},
		{Filter: Filter{Addresses: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8"),
			netip.MustParsePrefix("fd00::1/128")}, Ports: []uint16{0, 65535},
			Protocol: "tcp", Node: "rome-1", State: "established"}},
	} {
		got, err := parseCapture(o.Values())
		if err != nil || !reflect.DeepEqual(got, o) {
			t.Errorf("%+v becomes %+v, %v", o, got, err)
		}
		f, err := ParseFilter(o.Filter.Values())
		if err != nil || !reflect.DeepEqual(f, o.Filter) || f.IsZero() != (o.Filter.Ports == nil) {
			t.Errorf("%+v becomes %+v, %v", o.Filter, f, err)
		}
	}
}

// TestBadParameters: all bad parameters are named at once.
func TestBadParameters(t *testing.T) {
	for query, want := range map[string][]string{
		"port=x&address=10.0.0":     {`port: "x"`, `address: "10.0.0"`},
		"protocol=256":              {"protocol: "},
		"protocol=tcp&protocol=udp": {"protocol: given 2 times"},
		"nodes=rome-1":              {"nodes: unknown parameter"},
		// an old command
		"rule=no-ssh":         {"rule: unknown parameter: is the command of another version than the gateway?"},
		"count=-1&snaplen=-1": {"count: ", "snaplen: "},
		"verdict=accept":      {"verdict: \"accept\" is none of forward, drop"},
		"drops=yes":           {`drops: "yes" is neither true nor false`},
		"drops=":              {`drops: "" is neither true nor false`},
	} {
		v, err := url.ParseQuery(query)
		need.NoError(t, err)
		_, err = parseCapture(v)
		for _, w := range want {
			if err == nil || !strings.Contains(err.Error(), w) {
				t.Errorf("%s: %v, want %q", query, err, w)
			}
		}
	}
}

// TestTraceParameters: a server reads what a client writes, completed, or names what is wrong with
// each parameter.
func TestTraceParameters(t *testing.T) {
	at := netip.MustParseAddrPort
	for _, o := range []TraceOptions{
		{Connection: 1 << 60},
		{From: "rome-1", Protocol: "tcp", Source: at("10.0.1.5:1000"), Destination: at("10.0.2.5:80"),
			Flags: []string{"syn", "ack"}, Size: 1400, TTL: 3, DF: true},
		{Protocol: "icmpv6", Source: at("[fd00::1]:0"), Destination: at("[fd00::2]:0")},
	} {
		if got, err := ParseTrace(o.Values()); err != nil || !reflect.DeepEqual(got, o) {
			t.Errorf("%+v becomes %+v, %v", o, got, err)
		}
	}
	if o, err := ParseTrace(url.Values{"protocol": {"UDP"}, "source": {"10.0.1.5"},
		"destination": {"10.0.2.5:53"}}); err != nil || o.Source.Port() != 49152 || o.Protocol != "udp" {
		t.Errorf("%+v, %v", o, err)
	}
	for query, want := range map[string]string{
		"50%25size=0": "50%size: unknown parameter",
		// an old command
		"next=true":                    "next: unknown parameter: is the command of another version than the gateway?",
		"size=0":                       `size: "0" is no number of bytes from 1 to 65535`,
		"size=65536":                   `size: "65536" is no number of bytes from 1 to 65535`,
		"df=0":                         `df: "0" is neither true nor false`,
		"ttl=0":                        `ttl: "0" is no number from 1 to 255`,
		"ttl=3&ttl=4":                  "ttl: given 2 times",
		"flags=syn,psh,x":              `flags: "x" is none of `,
		"source=pod":                   `source: "pod" is no address such as 10.0.1.5, 10.0.1.5:80 or [fd00::5]:80`,
		"destination=10.0.1":           `destination: "10.0.1" is no address such as`,
		"connection=0":                 `connection: "0" is no connection's ID; culvert connections lists them`,
		"connection=5&ttl=3":           `connection: "5" is no connection's ID`,
		"protocol=300":                 `protocol: `,
		"":                             "protocol, source, destination: missing; describe a packet by protocol, source and destination",
		"protocol=tcp&source=10.0.1.5": "destination: missing; ",
		"protocol=udp&source=10.0.1.5&destination=[fd00::5]:80":          "destination: fd00::5 is of another family than source 10.0.1.5",
		"protocol=icmp&source=fd00::1&destination=fd00::5":               "protocol: icmp is of IPv4; for these addresses it is icmpv6",
		"protocol=icmpv6&source=10.0.1.5&destination=10.0.2.5":           "protocol: icmpv6 is of IPv6; for these addresses it is icmp",
		"protocol=sctp&source=10.0.1.5&destination=10.0.2.5":             "destination: sctp needs a port; write 10.0.2.5:PORT",
		"protocol=tcp&source=fd00::1&destination=fd00::50":               "destination: tcp needs a port; write [fd00::50]:PORT",
		"protocol=icmp&source=10.0.1.5&destination=10.0.2.5:80":          "source, destination: icmp has no ports; write addresses alone",
		"protocol=udp&flags=syn&source=10.0.1.5&destination=10.0.2.5:80": "flags: udp has none; tcp has",
	} {
		v, err := url.ParseQuery(query)
		need.NoError(t, err)
		if _, err := ParseTrace(v); err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%s: %v, want %q", query, err, want)
		}
	}
}

// TestAddressesOfHosts: an address is the prefix of one host, a prefix loses its host bits.
func TestAddressesOfHosts(t *testing.T) {
	f, err := ParseFilter(url.Values{"address": {"10.1.2.3", "10.1.2.3/8", "fd00::1"}})
	if err != nil || len(f.Addresses) != 3 || f.Addresses[0].String() != "10.1.2.3/32" ||
		f.Addresses[1].String() != "10.0.0.0/8" || f.Addresses[2].String() != "fd00::1/128" {
		t.Errorf("%+v, %v", f, err)
	}
}

// TestDefaultPath: a gateway's socket is in its user's runtime directory, under the names of both
// clusters.
func TestDefaultPath(t *testing.T) {
	t.Setenv("XDG_RUNTIME_DIR", "/somewhere")
	for _, tt := range []struct{ cluster, peer, want string }{
		{"rome", "milan", "/somewhere/culvert/rome-milan.sock"},
		{"", "milan", "/somewhere/culvert/milan.sock"},
	} {
		if got := DefaultPath(tt.cluster, tt.peer); got != tt.want {
			t.Errorf("%q and %q: %s, want %s", tt.cluster, tt.peer, got, tt.want)
		}
	}
	t.Setenv("RUNTIME_DIRECTORY", "/run/culvert/rome:/run/other")
	if got := DefaultPath("rome", "milan"); got != "/run/culvert/rome/rome-milan.sock" {
		t.Errorf("as a service: %s", got)
	}
}

// TestPathsOfServices: a client finds the sockets of systemd services, each in a folder of its own.
func TestPathsOfServices(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("XDG_RUNTIME_DIR", dir)
	t.Setenv("RUNTIME_DIRECTORY", filepath.Join(dir, "culvert", "rome"))
	want := DefaultPath("rome", "milan")
	need.NoError(t, os.MkdirAll(filepath.Dir(want), 0o700))
	need.NoError(t, os.WriteFile(want, nil, 0o600))
	if got := Paths(); !slices.Contains(got, want) {
		t.Errorf("%q; want %s among them", got, want)
	}
	node := NodePath("n1") // a node's socket is in such a folder too, but is no gateway
	need.NoError(t, os.MkdirAll(filepath.Dir(node), 0o700))
	need.NoError(t, os.WriteFile(node, nil, 0o600))
	if got := Paths(); slices.Contains(got, node) {
		t.Errorf("%s is taken for a gateway's", node)
	}
}

// TestReloadParameters: only dryRun=true and dryRun=false are accepted, however the request is
// written.
func TestReloadParameters(t *testing.T) {
	for query, want := range map[string]string{
		"":                         "applied",
		"dryRun=false":             "applied",
		"dryRun=true":              "dry",
		"dryRun=maybe":             `dryRun: "maybe" is neither true nor false`,
		"dryRun=":                  `dryRun: "" is neither true nor false`,
		"dry-run=true":             "dry-run: unknown parameter; want dryRun=true, or none",
		"dryRun=true&dryRun=false": "dryRun: given 2 times",
	} {
		var did string
		source := reloads{did: &did}
		w := httptest.NewRecorder()
		serveReload(source)(w, httptest.NewRequest(http.MethodPost, "/v1/reload?"+query, nil))
		if w.Code != http.StatusOK {
			var e Error
			if err := json.Unmarshal(w.Body.Bytes(), &e); err != nil || did != "" {
				t.Errorf("%s: %v; the configuration was %s", query, err, did)
			}
			did = e.Message
		}
		if did != want {
			t.Errorf("%s: %s, want %s", query, did, want)
		}
	}
}

// reloads is a Source that records what it was asked.
type reloads struct {
	Source
	did *string
}

func (r reloads) Reload(_ context.Context, dryRun bool) (*Reloaded, error) {
	*r.did = "applied"
	if dryRun {
		*r.did = "dry"
	}
	return &Reloaded{DryRun: dryRun}, nil
}
