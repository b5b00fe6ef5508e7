package integration

import (
	"cmp"
	"fmt"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"culvert/integration/need"
)

// kubeScale is how large the large cluster is, and for how long its pods change.
type kubeScale struct {
	nodes, each int // nodes; connections of each of their last pods
	lasts       time.Duration
	pairs       int // of times in which a stream is measured
}

var (
	kubeSmall = kubeScale{nodes: 22, each: 5, lasts: 3 * time.Second}
	kubeLarge = kubeScale{nodes: 202, each: 25, lasts: time.Minute, pairs: 20}
)

const (
	kubePace   = 50 * time.Millisecond // between two changes of pods
	kubeCores  = 0.2                   // CPU cores that a gateway may need for them
	kubeMemory = 120 << 20             // bytes that it may have resident
	kubeIdle   = 60 << 20              // the same in a cluster of two nodes, without traffic
	kubeKeeps  = 0.95                  // part of its rate that a stream keeps beside them

	kubeCostTimes = 4
	kubeCostTime  = 3 * time.Second

	kubeStreamPort = "5205"
	kubeStreamWarm = 300 * time.Millisecond
	kubeStreamTime = 1500 * time.Millisecond
)

// TestKubeScale changes twenty pods a second in a cluster of many nodes. Each change is
// obeyed within a second, and costs neither much of the CPU nor a stream its rate.
func TestKubeScale(t *testing.T) {
	isolated(t, func(t *testing.T) {
		scale := kubeSmall
		if os.Getenv(longEnv) != "" {
			scale = kubeLarge
		}
		rome, milan := newKubeLab(t, &kubeRome, &kubeMilan), newKubeHosts(t, &kubeMilan)
		milan.liqo = &liqo{t: t, here: &kubeMilan, remote: &kubeRome}
		rome.connect(milan)
		rome.ready(rome.startLiqoGateway(unprivilegedUID, unprivilegedUID))
		milan.startFileGateway(rome.key.PublicKey())
		fakes := rome.addFakeNodes(scale.nodes, milan.pods[0])
		rome.startNodes()
		milan.startNodes()
		rome.liqo.keysExchanged(milan.key.PublicKey().Bytes())
		rome.connected()
		for i := range fakes.nodes {
			n := &fakes.nodes[i]
			fakes.await(t, fakes.pod(n, fakeNodePods-1), n, kubeBack)
			rome.requireApplied(t, n.name, rome.liqo.podRoutes(n), startTimeout)
		}
		pingThrough(rome.pods[0], milan.seen(milan.pod(&kubeNodes[0], 5)))

		farPod := milan.seen(milan.pod(&kubeNodes[1], 5))
		fakes.connect(t, farPod, scale.each)
		fakes.watch(t)
		before, began := rome.culvert.cpu(t), time.Now()
		took := fakes.churn(t, scale.lasts, nil)
		cores := (rome.culvert.cpu(t) - before).Seconds() / time.Since(began).Seconds()
		slices.SortFunc(took, func(a, b kubeChange) int { return cmp.Compare(a.obeyed, b.obeyed) })
		t.Logf("%d nodes, %.0f connections: %d changes of pods obeyed within %v, half of them within %v; %.3f of a core, %d MiB resident",
			scale.nodes, rome.gatewayHost.metric("culvert_connections"), len(took), took[len(took)-1].obeyed,
			took[len(took)/2].obeyed, cores, rome.culvert.resident(t)>>20)
		t.Logf("the slowest: %v", took[max(0, len(took)-8):])
		if cores > kubeCores {
			t.Errorf("the changes need %.3f of a core, want at most %.1f", cores, kubeCores)
		}

		if scale.pairs > 0 {
			t.Logf("the changes alone take %.3f of a core", fakes.cost(t))
			fakes.compare(t, milan, scale.pairs, func() { fakes.connect(t, farPod, scale.each) })
		}
		got := rome.culvert.resident(t)
		if t.Logf("%d MiB resident at the end", got>>20); got > kubeMemory {
			t.Errorf("%d bytes resident, want at most %d", got, kubeMemory)
		}
	}, kubernetes, liqoMode)
}

// A kubeChange is the result of one change: how long after it was written the watch of the
// test reported it, and the gateway obeyed it.
type kubeChange struct {
	at     int // number of the change
	told   bool
	after  time.Duration
	obeyed time.Duration
}

func (c kubeChange) String() string {
	if !c.told {
		return fmt.Sprintf("%d: %v, not reported by the watch", c.at, c.obeyed)
	}
	return fmt.Sprintf("%d: %v, reported by the watch after %v", c.at, c.obeyed, c.after)
}

// churn replaces a pod of one node after the other until stop is closed or, if it is nil, for
// the time lasts. It returns the changes if stop is nil.
func (c *fakeNodes) churn(t *testing.T, lasts time.Duration, stop <-chan struct{}) []kubeChange {
	var (
		writing sync.WaitGroup
		mu      sync.Mutex
		took    []kubeChange
		ended   <-chan time.Time
	)
	if stop == nil {
		ended = time.After(lasts)
	}
	tick := time.NewTicker(kubePace)
	defer tick.Stop()
	defer writing.Wait()
	for {
		select {
		case <-stop:
			return nil
		case <-ended:
			writing.Wait()
			return took
		case <-tick.C:
		}
		churned := len(c.nodes) - 1 // the last is for caughtUp
		n, round := &c.nodes[c.changes%churned], c.changes/churned+1
		c.changes++
		change := kubeChange{at: c.changes}
		writing.Go(func() {
			routes, began := c.lab.liqo.podRoutes(n, c.podsOf(n, round)...), time.Now()
			if err := c.lab.api.admin.apply(routes); err != nil {
				t.Error(err)
				return
			}
			wrote := time.Now()
			if stop != nil {
				return
			}
			came := c.await(t, c.pod(n, round+fakeNodePods-1), n, kubeSoon)
			went := c.await(t, c.pod(n, round-1), nil, kubeSoon)
			told := c.toldOf(routes)
			change.told, change.after = told.After(began), told.Sub(wrote).Round(time.Millisecond)
			change.obeyed = max(came, went).Round(time.Millisecond)
			mu.Lock()
			defer mu.Unlock()
			took = append(took, change)
		})
	}
}

// cost returns the part of a core that the gateway needs to obey changes, in addition to what
// it needs while the relay withholds them.
func (c *fakeNodes) cost(t *testing.T) float64 {
	t.Helper()
	stop, churning := make(chan struct{}), sync.WaitGroup{}
	churning.Go(func() { c.churn(t, 0, stop) })
	relay := c.lab.api.relay
	var spent [2]time.Duration
	var times [2]time.Duration
	for i := range 2 * kubeCostTimes {
		on := (i + i/2) % 2
		if relay.hold(on == 0); on == 1 {
			c.caughtUp(t)
		}
		before, began := c.lab.culvert.cpu(t), time.Now()
		time.Sleep(kubeCostTime) // the measured window
		spent[on], times[on] = spent[on]+c.lab.culvert.cpu(t)-before, times[on]+time.Since(began)
	}
	relay.hold(false)
	close(stop)
	churning.Wait()
	return spent[1].Seconds()/times[1].Seconds() - spent[0].Seconds()/times[0].Seconds()
}

// compare measures a stream beside changes of pods, which reach the gateway or are withheld
// in turn. Either case is first as often as last, so that drift of the machine affects both.
func (c *fakeNodes) compare(t *testing.T, other *kubeLab, pairs int, refresh func()) {
	t.Helper()
	stop, churning := make(chan struct{}), sync.WaitGroup{}
	churning.Go(func() { c.churn(t, 0, stop) })
	relay, arrived := c.lab.api.relay, c.lab.stream(t, other)
	var rates [2][]float64
	var sum [2]float64
	measure := func() float64 {
		from, had := time.Now(), arrived.Load()
		time.Sleep(kubeStreamTime) // the measured window
		return float64(arrived.Load()-had) * 8 / 1e6 / time.Since(from).Seconds()
	}
	for i := range 2 * pairs {
		on := (i + i/2) % 2 // 0 1 1 0 0 1 1 0
		if relay.hold(on == 0); on == 1 {
			c.caughtUp(t)
		}
		time.Sleep(kubeStreamWarm) // the stream warms up
		rate := measure()
		rates[on], sum[on] = append(rates[on], rate), sum[on]+rate
		if i == pairs { // connections live two minutes
			relay.hold(false)
			refresh()
			relay.hold(true)
			// The burst slows the stream for a while, which is not to count in either case.
			eventually(t, "the stream is fast again", func() error {
				if now := measure(); now < sum[0]/float64(len(rates[0]))*kubeKeeps {
					return fmt.Errorf("%.0f Mbit/s", now)
				}
				return nil
			})
		}
	}
	relay.hold(false)
	close(stop)
	churning.Wait()
	t.Logf("Mbit/s with watches off %.0f, with watches on %.0f", rates[0], rates[1])
	for _, r := range rates {
		slices.Sort(r)
	}
	ratio := sum[1] / sum[0]
	t.Logf("a stream of %.0f Mbit/s (%.0f to %.0f), with watches off %.0f (%.0f to %.0f): %.3f; %.0f connections",
		sum[1]/float64(pairs), rates[1][0], rates[1][pairs-1],
		sum[0]/float64(pairs), rates[0][0], rates[0][pairs-1], ratio, c.lab.gatewayHost.metric("culvert_connections"))
	if ratio < kubeKeeps {
		t.Errorf("the stream keeps %.3f of its rate, want at least %.2f", ratio, kubeKeeps)
	}
}

// caughtUp waits until the gateway knows what has changed while it could not watch.
func (c *fakeNodes) caughtUp(t *testing.T) {
	t.Helper()
	n := &c.nodes[len(c.nodes)-1]
	c.known++
	c.lab.liqo.podsRun(n, c.podsOf(n, c.known)...)
	c.await(t, c.pod(n, c.known+fakeNodePods-1), n, kubeBack)
}

// stream sends to the other cluster by one TCP connection until the test ends, and counts
// the bytes that arrive.
func (k *kubeLab) stream(t *testing.T, other *kubeLab) *atomic.Int64 {
	t.Helper()
	n := &kubeNodes[0]
	l, err := other.pods[0].listen("tcp4", net.JoinHostPort(other.pod(n, 5), kubeStreamPort))
	need.NoError(t, err)
	t.Cleanup(func() { l.Close() })
	conn, err := k.pods[0].dial("tcp4", net.JoinHostPort(other.seen(other.pod(n, 5)), kubeStreamPort))
	need.NoError(t, err)
	t.Cleanup(func() { conn.Close() })
	sink, err := l.Accept()
	need.NoError(t, err)
	t.Cleanup(func() { sink.Close() })
	arrived := new(atomic.Int64)
	go func() {
		for b := make([]byte, 1<<17); ; {
			n, err := sink.Read(b)
			arrived.Add(int64(n))
			if err != nil {
				return
			}
		}
	}()
	go func() {
		for b := make([]byte, 1<<17); ; {
			if _, err := conn.Write(b); err != nil {
				return
			}
		}
	}()
	return arrived
}

// cpu is the time that the process has had.
func (p *peerProcess) cpu(t *testing.T) time.Duration {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p.cmd.Process.Pid))
	need.NoError(t, err)
	_, rest, _ := strings.Cut(string(text), ") ") // behind its name
	var ticks int
	for _, field := range strings.Fields(rest)[11:13] { // utime and stime
		n, err := strconv.Atoi(field)
		need.NoError(t, err)
		ticks += n
	}
	return time.Duration(ticks) * time.Second / 100 // USER_HZ
}

// resident is how many bytes of the process are in memory, and peak how many were at most.
func (p *peerProcess) resident(t *testing.T) int { return p.memory(t, "VmRSS") }
func (p *peerProcess) peak(t *testing.T) int     { return p.memory(t, "VmHWM") }

func (p *peerProcess) memory(t *testing.T, field string) int {
	t.Helper()
	for name, value := range p.lines(t, "status", ":") {
		if name == field {
			kib, err := strconv.Atoi(strings.Fields(value)[0])
			need.NoError(t, err)
			return kib << 10
		}
	}
	t.Fatal("no " + field)
	return 0
}
