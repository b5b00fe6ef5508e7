//go:build !nokube

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sirupsen/logrus"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/dynamic/fake"

	"culvert/gateway/config"
	"culvert/gateway/config/configtest"
	"culvert/gateway/replica"
	"culvert/gateway/role"
	"culvert/gateway/wgkey"
	"culvert/integration/need"
	"culvert/kube"
	"culvert/kube/election"
	"culvert/nat"
	"culvert/nat/nattest"
	"culvert/nat/packet"
)

// A carrier is an engine that carries packets in the roles of a gateway, and takes part in an
// election.
type carrier struct {
	*election.Elector
	api  *cutAPI
	e    *nat.Engine
	link nat.Link
	r    *replica.Replica
	at   netip.AddrPort // where it is copied from

	mu   sync.Mutex
	role role.Role
}

func (c *carrier) Become(to role.Role) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.role == role.Standby && to.Forwards() {
		c.r.Lead()
		c.e.Thaw(elapsed())
	}
	if c.role = to; to == role.Standby {
		c.r.Rest()
		c.e.Freeze()
	}
}

func (c *carrier) Signs() role.Signs { return role.Signs{Stream: c.r.Followed()} }
func (c *carrier) Call()             {}

var born = time.Now()

func elapsed() nat.Time { return nat.Time(time.Since(born)) }

// begin begins a connection of a node, whose port no packet can find again. It returns false if
// this carrier does not forward.
func (c *carrier) begin(t *testing.T, n int) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.role.Forwards() {
		return false
	}
	b := nattest.IP{Source: "172.18.0.10", Destination: fmt.Sprintf("10.61.%d.%d", n>>8&255, n&255),
		Body: nattest.UDP{SourcePort: uint16(1024 + n>>16), DestinationPort: 53, NoChecksum: true}}.Bytes()
	var p packet.Packet
	p.Parse(b)
	if v := c.e.Process(&p, c.link, elapsed()); v.Action != nat.Forward || v.Untracked {
		t.Errorf("connection %d: %v %v", n, v.Action, v.Reason)
	}
	return true
}

// connections returns the translations of all.
func (c *carrier) connections() map[string]bool {
	all := map[string]bool{}
	var list []nat.ConnInfo
	for at, more := nat.Cursor(0), true; more; {
		list, at, more = c.e.Connections(at, &nat.ConnFilter{}, elapsed(), list)
	}
	for i := range list {
		all[list[i].Original.String()+" "+list[i].Reply.String()] = true
	}
	return all
}

// A cutAPI is an API server from which a client can be cut off.
type cutAPI struct {
	dynamic.Interface
	cut atomic.Bool
}

func (a *cutAPI) Resource(r schema.GroupVersionResource) dynamic.NamespaceableResourceInterface {
	return &cutResource{a.Interface.Resource(r), a}
}

type cutResource struct {
	dynamic.NamespaceableResourceInterface
	of *cutAPI
}

func (r *cutResource) Namespace(name string) dynamic.ResourceInterface {
	return &cutObjects{r.NamespaceableResourceInterface.Namespace(name), r.of}
}

type cutObjects struct {
	dynamic.ResourceInterface
	of *cutAPI
}

var errCut = errors.New("cut off")

func (o *cutObjects) Get(ctx context.Context, name string, g metav1.GetOptions,
	sub ...string) (*unstructured.Unstructured, error) {
	if o.of.cut.Load() {
		return nil, errCut
	}
	return o.ResourceInterface.Get(ctx, name, g, sub...)
}

func (o *cutObjects) Update(ctx context.Context, u *unstructured.Unstructured, p metav1.UpdateOptions,
	sub ...string) (*unstructured.Unstructured, error) {
	if o.of.cut.Load() {
		return nil, errCut
	}
	return o.ResourceInterface.Update(ctx, u, p, sub...)
}

func (o *cutObjects) List(ctx context.Context, l metav1.ListOptions) (*unstructured.UnstructuredList, error) {
	if o.of.cut.Load() {
		return nil, errCut
	}
	return o.ResourceInterface.List(ctx, l)
}

func newCarriers(t *testing.T) (all [2]*carrier) {
	log := logrus.New()
	log.SetOutput(io.Discard)
	entry := logrus.NewEntry(log)
	api := fake.NewSimpleDynamicClientWithCustomListKinds(runtime.NewScheme(), map[schema.GroupVersionResource]string{
		{Group: "coordination.k8s.io", Version: "v1", Resource: "leases"}: "LeaseList",
		{Version: "v1", Resource: "pods"}:                                 "PodList"})
	key := wgkey.NewPrivate()
	ctx, stop := context.WithCancel(context.Background())
	var tasks sync.WaitGroup
	t.Cleanup(func() { stop(); tasks.Wait() })
	for i := range all {
		cfg := configtest.Cluster("rome", "milan", config.Client, "10.61.0.0/16", "10.71.0.0/16")
		links := config.Links{}.Assign(cfg.Geneve.Nodes)
		c := &carrier{role: role.Standby, link: links.ByName["rome-1"], api: &cutAPI{Interface: api}}
		var err error
		if c.e, err = nat.New([16]byte{1}, cfg.NAT(links, 1<<20)); err != nil {
			t.Fatal(err)
		}
		c.e.Freeze()
		name := string(rune('a' + i))
		c.Elector = election.New(election.Options{
			Client: c.api, Namespace: "culvert", Name: "culvert-milan", Pod: name, Retry: 200 * time.Millisecond,
			Deadline: time.Second,
			Times:    role.Times{Lease: time.Second, Patience: time.Minute}, Log: entry, Causes: kube.NewCauses(entry),
			Label: election.Label{Selector: "app=culvert-gateway", Name: "active"},
		})
		c.r = replica.New(replica.Options{
			Log: entry, Key: key, Name: name, Engine: c.e, Now: elapsed, LinkName: links.Name, Link: links.Find,
			Config: func() string { return "" }, Facts: func() []byte { return nil }, Took: func([]byte) {},
			Heard: c.Heard,
		})
		l, err := net.Listen("tcp", "127.0.0.1:0")
		need.NoError(t, err)
		c.at = l.Addr().(*net.TCPAddr).AddrPort()
		tasks.Go(func() { c.r.Serve(l) })
		t.Cleanup(c.r.Close)
		c.Drive(c, c.r)
		tasks.Go(func() { c.Run(ctx) })
		need.Eventually(t, 30*time.Second, "the first one is active", func() error {
			if is := c.Role(); i == 0 && is != role.Active {
				return fmt.Errorf("it is %v", is)
			}
			return nil
		})
		all[i] = c
	}
	return all
}

// TestNoConnectionIsMissing: connections begin as fast as they can, at whichever gateway forwards,
// until the very moment in which it stops. When the other one forwards, it has all of them,
// although nothing but the stream could have told it.
func TestNoConnectionIsMissing(t *testing.T) {
	for name, change := range map[string]func(context.Context, *carrier){
		"it leaves": func(ctx context.Context, active *carrier) { active.Leave(ctx) },
		"it alone is cut off from the API server": func(_ context.Context, active *carrier) {
			active.api.cut.Store(true)
		},
	} {
		t.Run(name, func(t *testing.T) {
			all := newCarriers(t)
			active, standby := all[0], all[1]
			ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
			defer cancel()
			standby.r.Follow(active.at)
			need.NoError(t, standby.r.Whole(ctx))
			begun := make(chan int)
			changing, stop := context.WithCancel(ctx)
			defer stop()
			go func() { // until the active one refuses
				n := 0
				for ; changing.Err() == nil && active.begin(t, n); n++ {
					if standby.begin(t, n) {
						t.Errorf("both forward after %d connections", n)
						break
					}
					if n%10 == 0 {
						time.Sleep(20 * time.Microsecond) // the pace of new connections
					}
				}
				begun <- n
			}()
			time.AfterFunc(50*time.Millisecond, func() { change(ctx, active) })
			n := <-begun
			stopped := time.Now()
			for standby.Role() != role.Active {
				select {
				case <-ctx.Done():
					t.Fatal("the standby does not take over")
				case <-time.After(time.Millisecond):
				}
			}
			took := time.Since(stopped)
			if took > time.Second {
				t.Errorf("nobody forwarded for %v", took)
			}
			was, is := active.connections(), standby.connections()
			missing := 0
			for c := range was {
				if !is[c] {
					missing++
				}
			}
			t.Logf("%d connections begun, %d missing, nobody forwarded for %v", n, missing, took)
			if n == 0 || len(was) == 0 || missing > 0 {
				t.Errorf("%d of %d connections are missing", missing, len(was))
			}
		})
	}
}
