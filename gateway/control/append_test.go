package control

import (
	"encoding/json"
	"math/rand/v2"
	"net/http"
	"net/netip"
	"reflect"
	"testing"

	"culvert/integration/need"
)

// TestConnectionsAsJSON: a connection's text equals that of encoding/json, whatever its fields, and
// costs no allocation.
func TestConnectionsAsJSON(t *testing.T) {
	const seed = 1
	random := rand.New(rand.NewPCG(seed, 0))
	strings := []string{"", "udp", "rome-node1", "service web", `a "quoted" \ name`, "<b>&", "with\ttab", "Köln",
		"\xff", "\u2028"}
	addresses := []netip.Addr{{}, netip.MustParseAddr("10.0.1.5"), netip.MustParseAddr("255.255.255.255"),
		netip.MustParseAddr("2001:db8::7"), netip.MustParseAddr("::ffff:10.0.1.5"), netip.IPv6Unspecified()}
	var fill func(v reflect.Value)
	fill = func(v reflect.Value) {
		switch x := v.Addr().Interface().(type) {
		case *netip.Addr:
			*x = addresses[random.IntN(len(addresses))]
			return
		case *float64:
			*x = float64(random.IntN(1<<random.IntN(30))) / 1000
			return
		}
		switch v.Kind() {
		case reflect.Struct:
			for i := range v.NumField() {
				fill(v.Field(i))
			}
		case reflect.Slice:
			v.Set(reflect.MakeSlice(v.Type(), random.IntN(3), 3))
			for i := range v.Len() {
				fill(v.Index(i))
			}
		case reflect.String:
			v.SetString(strings[random.IntN(len(strings))])
		case reflect.Bool:
			v.SetBool(random.IntN(2) == 1)
		case reflect.Uint16, reflect.Uint32, reflect.Uint64:
			v.SetUint(random.Uint64() >> random.IntN(64))
		default:
			t.Fatalf("a field of kind %v", v.Kind())
		}
	}
	var c Connection
	for range 20_000 {
		fill(reflect.ValueOf(&c).Elem())
		want, err := json.Marshal(&c)
		need.NoError(t, err)
		if got := c.appendJSON(nil); string(got) != string(want) {
			t.Fatalf("seed %d:\n got %s\nwant %s", seed, got, want)
		}
	}

	c = Connection{ID: 1 << 40, Protocol: "tcp", State: "established", From: "rome-node1", To: "tunnel",
		Uses: []string{"remap"}, IdleSeconds: 0.125,
		Original: Tuple{addresses[1], 40000, addresses[3], 443}, Reply: Tuple{addresses[3], 443, addresses[2], 40000},
		Sent: Volume{1, 2}}
	l := newLines(nowhere{})
	const connections = 2000
	n := testing.AllocsPerRun(3, func() {
		for range connections {
			if !l.connection(&c) {
				t.Fatal("a connection is not written")
			}
		}
	})
	if n > connections/100 {
		t.Errorf("%v allocations for %d connections", n, connections)
	}
}

// nowhere is a ResponseWriter that discards everything.
type nowhere struct{}

func (nowhere) Header() http.Header         { return make(http.Header) }
func (nowhere) Write(b []byte) (int, error) { return len(b), nil }
func (nowhere) WriteHeader(int)             {}
