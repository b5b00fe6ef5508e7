package gateway

import (
	"context"
	"encoding/json"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"testing"

	"culvert/gateway/config"
	"culvert/gateway/control"
	"culvert/integration/need"
	"culvert/nat/nattest"
	"culvert/nat/rules"
)

// listed returns the connections that the gateway lists for a query.
func listed(t *testing.T, client *control.Client, query string) (all []*control.Connection) {
	t.Helper()
	values, err := url.ParseQuery(query)
	need.NoError(t, err)
	if err := control.Each(t.Context(), client, "/v1/connections", values, func(c *control.Connection) bool {
		all = append(all, c)
		return true
	}); err != nil {
		t.Fatal(err)
	}
	return all
}

// TestConnectionsSayWhatTranslates: a listed connection names its nodes, and the rules that
// translate it.
func TestConnectionsSayWhatTranslates(t *testing.T) {
	p, client := newControlled(t, func(rome, _ *config.Config) {
		rome.Addresses = []config.AddressMapping{{External: rules.PairOf(netip.MustParseAddr("10.70.0.9")),
			Internal: rules.PairOf(netip.MustParseAddr("192.0.2.10")), Via: "rome-1"}}
		rome.Services = []config.Service{{Name: "web", Address: rules.PairOf(netip.MustParseAddr("10.70.0.20")),
			Port: 53, Protocol: 17,
			Backends: []config.Backend{{Address: netip.MustParseAddr("10.0.1.7"), Port: 5353}}}}
	})
	rome, milan := p.rome.nodes[0], p.milan.nodes[0]
	rome.Send(udpPacket("10.0.1.5", "10.61.1.7", nil))
	expect(t, milan, "10.62.1.5", "10.0.1.7")
	rome.Send(udpPacket("203.0.113.9", "10.61.1.7", nil))
	expect(t, milan, "10.72.0.0", "10.0.1.7")
	rome.Send(udpPacket("192.0.2.10", "10.61.1.7", nil))
	expect(t, milan, "10.72.0.9", "10.0.1.7")
	milan.Send(udpPacket("10.0.1.7", "10.72.0.9", nil))
	expect(t, rome, "10.61.1.7", "192.0.2.10")
	milan.Send(udpPacket("10.0.1.8", "10.72.0.20", nil))
	expect(t, rome, "10.61.1.8", "10.0.1.7")
	for _, tt := range []struct {
		query, from, to string
		uses            []string
	}{
		{"address=10.0.1.5", "rome-1", "tunnel", []string{"remap"}},
		{"address=203.0.113.9", "rome-1", "tunnel", []string{"remap", "unknown-source"}},
		{"address=192.0.2.10&address=10.61.1.7&port=4000", "rome-1", "tunnel", []string{"remap", "address 10.70.0.9"}},
		{"address=10.70.0.20&port=5353", "tunnel", "rome-1", []string{"service web", "remap"}},
	} {
		all := listed(t, client, tt.query)
		if len(all) == 0 {
			t.Errorf("%s: none", tt.query)
			continue
		}
		c := all[0]
		if c.From != tt.from || c.To != tt.to || !slices.Equal(c.Uses, tt.uses) || c.Protocol != "udp" ||
			c.Sent.Packets != 1 || c.Sent.Bytes == 0 {
			t.Errorf("%s: %+v, want %+v", tt.query, c, tt)
		}
	}
	if all, some := listed(t, client, ""), listed(t, client, "node=rome-2"); len(all) < 4 || len(some) != 0 {
		t.Errorf("%d connections, %d of another node", len(all), len(some))
	}
	for query, want := range map[string]string{
		"node=nope": "rome-1, rome-2, tunnel", "state=nope": "established", "protocol=nope": "tcp",
		"port=nope": "65535", "address=10.0.0.0/33": "prefix",
		"adress=10.0.0.1": "unknown parameter",
	} {
		values, _ := url.ParseQuery(query)
		err := control.Each(t.Context(), client, "/v1/connections", values, func(*control.Connection) bool {
			return true
		})
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", query, err, want)
		}
	}
}

// TestEventsAndDelete: a watcher sees each connection begin and end, and nobody deletes all
// connections by mistake.
func TestEventsAndDelete(t *testing.T) {
	p, client := newControlled(t, nil)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	response, err := client.Open(ctx, http.MethodGet, "/v1/connections/events", url.Values{"protocol": {"udp"}}, nil)
	if err != nil { // once the header of the response has come, the watch has begun
		t.Fatal(err)
	}
	defer response.Body.Close()
	events := json.NewDecoder(response.Body)
	send := func() {
		t.Helper()
		p.rome.nodes[0].Send(nattest.IP{Source: "10.0.1.5", Destination: "10.61.1.7", Body: nattest.ICMP{Type: 8,
			Rest: 1}}.Bytes())
		expect(t, p.milan.nodes[0], "10.62.1.5", "10.0.1.7")
		p.rome.nodes[0].Send(udpPacket("10.0.1.5", "10.61.1.7", nil))
		expect(t, p.milan.nodes[0], "10.62.1.5", "10.0.1.7")
	}
	var deleted control.Deleted
	if err := client.Get(t.Context(), http.MethodDelete, "/v1/connections", nil, &deleted); err == nil ||
		!strings.Contains(err.Error(), "which connections") {
		t.Errorf("without a filter: %v", err)
	}
	send()
	if err := client.Get(t.Context(), http.MethodDelete, "/v1/connections", url.Values{"all": {"true"}},
		&deleted); err != nil || deleted.Connections != 2 {
		t.Errorf("%+v, %v", deleted, err)
	}
	for i, want := range []string{"new", "ended"} {
		var e control.Event
		need.NoError(t, events.Decode(&e))
		if e.Kind != want || e.Connection == nil || e.Connection.Protocol != "udp" ||
			e.Connection.Original.Source.String() != "10.0.1.5" ||
			i == 1 && (e.Reason != "deleted" || e.Connection.Sent.Packets != 1) {
			t.Errorf("%+v", e)
		}
	}
}
