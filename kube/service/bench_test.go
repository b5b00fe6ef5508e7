package service

import (
	"fmt"
	"net/netip"
	"runtime"
	"testing"

	"culvert/gateway/node/services"
	"culvert/integration/need"
	"culvert/kube/objects"
	"culvert/nat"
)

const (
	manyServices  = 5000
	manyEndpoints = 50000
	compileMemory = 96 << 20
)

// aCluster holds many Services of ten endpoints each, a tenth of them with a node port.
func aCluster(t testing.TB) *State {
	s := aState(t, All)
	for i := range manyServices {
		kind, port := "ClusterIP", ""
		if i%10 == 0 {
			kind, port = "NodePort", fmt.Sprintf(`, "nodePort": %d`, 30000+i/4)
		}
		s.Put(&Object{
			Kind: KindService, Metadata: objects.Metadata{Namespace: "shop", Name: fmt.Sprintf("s%d", i)},
			Spec: fmt.Appendf(nil,
				`{"type": %q, "clusterIP": "10.96.%d.%d", "ports": [{"name": "http", "port": 80, "protocol": "TCP"%s}]}`, kind, i>>8, i&255, port),
		})
		s.Put(manyEndpointsOf(i, 0))
	}
	return s
}

// manyEndpointsOf is the slice of a Service after so many changes.
func manyEndpointsOf(i, changes int) *Object {
	list := []byte("[")
	for j := range manyEndpoints / manyServices {
		n := i*10 + j
		if j == 0 {
			n = 60000 + changes%5000
		} else {
			list = append(list, ',')
		}
		list = fmt.Appendf(list,
			`{"addresses": ["10.244.%d.%d"], "nodeName": "n%d", "conditions": {"ready": true, "serving": true, "terminating": false}}`, n>>8, n&255, n%100)
	}
	name := fmt.Sprintf("s%d", i)
	return &Object{
		Kind: KindSlice, Metadata: objects.Metadata{Namespace: "shop", Name: name + "-abcde",
			Labels: map[string]string{labelService: name}},
		AddressType: []byte(`"IPv4"`), Ports: []byte(`[{"name": "http", "port": 8080, "protocol": "TCP"}]`),
		Endpoints: append(list, ']'),
	}
}

// TestMemoryOfManyServices compiles as many Services as a large cluster has, within the memory that
// a node has for them. BenchmarkCompile measures the time.
func TestMemoryOfManyServices(t *testing.T) {
	before := heap()
	s := aCluster(t)
	held := heap() - before
	e, _ := newEngine(t, s.Config())
	used := heap() - before
	t.Logf("%d Services, %d endpoints: %d MiB, of which %d MiB are what the API server says", manyServices,
		manyEndpoints, used>>20, held>>20)
	if used > compileMemory {
		t.Errorf("%d bytes, want %d", used, compileMemory)
	}
	runtime.KeepAlive(s)
	runtime.KeepAlive(e)
}

func heap() int64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

func newEngine(t testing.TB, c *services.Config) (*nat.Engine, []netip.Addr) {
	own := addr("172.18.0.2", "fd18::2")
	n := c.NAT(own)
	e, err := nat.New([16]byte{1}, n)
	need.NoError(t, err)
	return e, own
}

// BenchmarkEndpointChange is one endpoint that changes among many, from the object to the packet
// path.
func BenchmarkEndpointChange(b *testing.B) {
	s := aCluster(b)
	c := s.Config()
	e, _ := newEngine(b, c)
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		b.StopTimer()
		o := manyEndpointsOf(i%manyServices, i+1)
		b.StartTimer()
		s.Put(o)
		next := s.Config()
		amended, alone := c.Amended(next)
		if !alone || len(amended) == 0 || e.Amend(amended) != nil {
			b.Fatalf("%d Services are amended, alone: %t", len(amended), alone)
		}
		c = next
	}
}

// BenchmarkCompile is the start of a node among many Services.
func BenchmarkCompile(b *testing.B) {
	s := aCluster(b)
	b.ReportAllocs()
	for b.Loop() {
		clear(s.served)
		s.fronts = nil
		newEngine(b, s.Config())
	}
}
