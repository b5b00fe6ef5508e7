package integration

import (
	"encoding/base64"
	"fmt"
	"net/http"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"culvert/integration/need"
)

const (
	peeringPods   = 100                   // of each node
	peeringMoves  = 60                    // pods that get another address, and changes of an EndpointSlice
	peeringShops  = 20                    // exported Services of as many endpoints as a node has pods
	peeringMemory = 128 << 20             // bytes that a gateway may have resident, also at its start
	peeringSoon   = time.Second           // until a change of a pod is obeyed
	peeringCPU    = 20 * time.Millisecond // that a change may cost
	podWriters    = 16
)

// TestKubePeeringScale: with podsFrom: Pods, the gateway of a large cluster starts within its
// memory, and obeys a change of one pod soon and at little cost: it keeps only the fields of Pods
// that it needs, and looks only at what has changed.
func TestKubePeeringScale(t *testing.T) {
	isolated(t, func(t *testing.T) {
		nodes := 10
		if os.Getenv(longEnv) != "" {
			nodes = 200
		}
		end := kubeRome
		end.firstVNI = 1 - len(kubeNodes) // VNIs follow names, and the fake nodes' names come first
		rome, milan := newPeeringLab(t, &end, &kubeMilan), newKubeHosts(t, &kubeMilan)
		milan.liqo = &liqo{t: t, here: &kubeMilan, remote: &end}
		rome.connect(milan)
		rome.install()
		fakes := rome.newFakeNodes(len(kubeNodes)+nodes, milan.pods[0])
		began := time.Now()
		size := rome.populate(fakes)
		t.Logf("%d nodes and %d Pods of %d bytes each are there after %v", nodes, nodes*peeringPods, size,
			time.Since(began).Round(time.Second))
		with := rome.peering()
		with["spec"].(object)["podsFrom"] = "Pods"
		with["spec"].(object)["publicKey"] = base64.StdEncoding.EncodeToString(milan.key.PublicKey().Bytes())
		rome.apply(with)
		began = time.Now()
		rome.startGateway("gateway-1")
		milan.startFileGateway(rome.publicKey())
		milan.startTunnels()
		rome.awaitCondition("Connected", "True")
		for i := range fakes.nodes {
			n := &fakes.nodes[i]
			fakes.await(t, fakes.pod(n, peeringPods-1), n, kubeBack)
		}
		t.Logf("all pods are reached after %v; %d MiB resident, %d at most", time.Since(began).Round(time.Millisecond),
			rome.gateway.resident(t)>>20, rome.gateway.peak(t)>>20)
		spent, slowest := rome.gateway.cpu(t), time.Duration(0)
		for i := range peeringMoves {
			n, from, to := &fakes.nodes[i%len(fakes.nodes)], i/len(fakes.nodes), peeringPods+i/len(fakes.nodes)
			changed := object{"status": object{"podIP": fakes.pod(n, to), "podIPs": []object{{"ip": fakes.pod(n, to)}}}}
			path := kubePath("v1", "Pod", "default", fakePodName(n, from)) + "/status"
			need.NoError(t, rome.api.admin.request(http.MethodPatch, path, "application/merge-patch+json",
				changed, nil))
			took := max(fakes.await(t, fakes.pod(n, to), n, peeringSoon), fakes.await(t, fakes.pod(n, from), nil,
				peeringSoon))
			slowest = max(slowest, took)
		}
		rome.requireCheap("a Pod", slowest, rome.gateway.cpu(t)-spent)
		testScaleExport(t, rome, fakes)
		if got := rome.gateway.peak(t); got > peeringMemory {
			t.Errorf("%d bytes resident, want at most %d", got, peeringMemory)
		}
	}, kubernetes)
}

// requireCheap fails if changes of an object are obeyed late, or cost the gateway too much CPU time
// together.
func (p *peeringLab) requireCheap(what string, slowest, spent time.Duration) {
	p.t.Helper()
	each := spent / peeringMoves
	p.t.Logf("%d changes of %s: obeyed within %v, %v of CPU each; %d MiB resident, %d at most", peeringMoves, what,
		slowest.Round(time.Millisecond), each,
		p.gateway.resident(p.t)>>20, p.gateway.peak(p.t)>>20)
	if slowest > peeringSoon || each > peeringCPU {
		p.t.Errorf("a change of %s is obeyed within %v and costs %v, want at most %v and %v", what, slowest, each,
			peeringSoon, peeringCPU)
	}
}

// testScaleExport: the pods of each node have a Service, and some Services are exported. A gateway
// obeys a change of an exported Service's endpoints as soon and at as little cost as one of a Pod,
// and changes of other Services cost no more.
func testScaleExport(t *testing.T, p *peeringLab, fakes *fakeNodes) {
	exportLabel := object{"culvert/export": "true"}
	service := func(name string, labels object) object {
		return object{"apiVersion": "v1", "kind": "Service", "metadata": object{"name": name, "namespace": "default",
			"labels": labels},
			"spec": object{"ports": []object{{"name": "discard", "protocol": "UDP", "port": kubeDiscard}}}}
	}
	// slice has all pods of a node as endpoints, of which one is ready, or all.
	slice := func(name string, n *kubeNode, ready string) object {
		endpoints := []object{}
		for i := range peeringPods {
			at := fakes.pod(n, i)
			endpoints = append(endpoints, object{"addresses": []string{at}, "conditions": object{"ready": ready == "" ||
				ready == at}, "nodeName": n.name,
				"targetRef": object{"kind": "Pod", "namespace": "default", "name": fakePodName(n, i)}})
		}
		return object{"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
			"endpoints": endpoints,
			"metadata": object{"name": name + "-1", "namespace": "default",
				"labels": object{"kubernetes.io/service-name": name}},
			"ports": []object{{"name": "discard", "protocol": "UDP", "port": kubeDiscard}}}
	}
	for i := range fakes.nodes {
		n, labels := &fakes.nodes[i], object{}
		if i < peeringShops {
			labels = exportLabel
		}
		p.apply(service("shop-"+n.name, labels), slice("shop-"+n.name, n, ""))
	}
	last := &fakes.nodes[len(fakes.nodes)-1]
	p.apply(service("web", exportLabel), slice("web", last, fakes.pod(last, 90)))
	address := ""
	eventuallyWithin(t, kubeBack, "the Service is exported", func() error {
		all, _ := p.status("exports").([]any)
		for _, x := range all {
			if x := x.(object); x["name"] == "web" {
				address, _ = x["address"].(string)
				return nil
			}
		}
		return fmt.Errorf("%v: %s", all, p.condition("Exported"))
	})
	fakes.awaitAt(t, fakes.lab.seen(address), fakes.pod(last, 90), last, kubeBack)
	spent, slowest := p.gateway.cpu(t), time.Duration(0)
	for i := range peeringMoves {
		pod := fakes.pod(last, 20+i)
		p.apply(slice("web", last, pod))
		slowest = max(slowest, fakes.awaitAt(t, fakes.lab.seen(address), pod, last, peeringSoon))
	}
	p.requireCheap("an exported EndpointSlice", slowest, p.gateway.cpu(t)-spent)
	spent = p.gateway.cpu(t)
	other := &fakes.nodes[len(fakes.nodes)-2]
	for i := range peeringMoves {
		p.apply(slice("shop-"+other.name, other, fakes.pod(other, 20+i)))
	}
	p.apply(slice("web", last, fakes.pod(last, 10)))
	p.requireCheap("another EndpointSlice", fakes.awaitAt(t, fakes.lab.seen(address), fakes.pod(last, 10), last,
		peeringSoon), p.gateway.cpu(t)-spent)
}

// populate makes the Nodes, TunnelNodes and Pods of fake nodes, and returns the size of a Pod.
func (p *peeringLab) populate(c *fakeNodes) (size int) {
	p.t.Helper()
	var writing sync.WaitGroup
	jobs := make(chan object)
	for range podWriters {
		writing.Go(func() {
			for o := range jobs {
				if err := p.create(o); err != nil {
					p.t.Error(err)
				}
			}
		})
	}
	for i := range c.nodes {
		n := &c.nodes[i]
		at, _ := p.outer(n)
		node := p.node(n)
		node["status"].(object)["addresses"] = []object{{"type": "InternalIP", "address": at}}
		jobs <- node
		jobs <- object{"apiVersion": peeringVersion, "kind": "TunnelNode", "metadata": object{"name": n.name,
			"namespace": agentNamespace},
			"spec":   object{"local": at, "remote": at},
			"status": object{"message": "", "peerings": []object{{"name": p.remote.name, "ready": true}}}}
		for i := range peeringPods {
			jobs <- fakePod(n, i, c.pod(n, i))
		}
	}
	close(jobs)
	writing.Wait()
	stored := mustObject(p.t)(p.api.admin.get(fakePod(&c.nodes[0], 0, "")))
	return len(fmt.Sprint(stored))
}

// create makes an object with its status.
func (p *peeringLab) create(o object) error {
	meta := o["metadata"].(object)
	namespace, _ := meta["namespace"].(string)
	var stored object
	err := p.api.admin.request(http.MethodPost, kubePath(o["apiVersion"].(string), o["kind"].(string), namespace, ""),
		"application/json", o, &stored)
	if err != nil {
		return err
	}
	stored["status"] = o["status"]
	return p.api.admin.replaceStatus(stored)
}

func fakePodName(n *kubeNode, i int) string { return fmt.Sprintf("shop-%s-%03d", n.name, i) }

// fakePod is a Pod of a common size: a template with probes, volumes and environment, and what
// kubelet says of it.
func fakePod(n *kubeNode, i int, address string) object {
	name := fakePodName(n, i)
	var env, mounts, volumes []object
	for k := range 25 {
		env = append(env, object{"name": fmt.Sprintf("SHOP_SETTING_%02d", k), "value": strings.Repeat("value ", 8)})
	}
	for k := range 4 {
		volume := fmt.Sprintf("volume-%d", k)
		mounts = append(mounts, object{"name": volume, "mountPath": "/var/lib/shop/" + volume, "readOnly": true})
		volumes = append(volumes, object{"name": volume, "configMap": object{"name": "shop-" + volume,
			"defaultMode": 420}})
	}
	probe := object{"httpGet": object{"path": "/healthz", "port": 8080, "scheme": "HTTP"}, "periodSeconds": 10,
		"timeoutSeconds": 1, "failureThreshold": 3}
	var containers, statuses []object
	for _, c := range []string{"shop", "proxy"} {
		containers = append(containers, object{"name": c, "image": "registry.example/shop/" + c + ":1.2.3", "env": env,
			"volumeMounts": mounts,
			"ports":        []object{{"containerPort": 8080, "name": "http-" + c}}, "readinessProbe": probe,
			"livenessProbe": probe,
			"resources": object{"requests": object{"cpu": "10m", "memory": "32Mi"},
				"limits": object{"memory": "64Mi"}}})
		statuses = append(statuses, object{"name": c, "ready": true, "started": true, "restartCount": 0,
			"image":       "registry.example/shop/" + c + ":1.2.3",
			"imageID":     "registry.example/shop/" + c + "@sha256:" + strings.Repeat("0123456789abcdef", 4),
			"containerID": "containerd://" + strings.Repeat("0123456789abcdef", 4),
			"state":       object{"running": object{"startedAt": "2026-11-26T12:00:00Z"}}})
	}
	var conditions []object
	for _, c := range []string{"Initialized", "Ready", "ContainersReady", "PodScheduled"} {
		conditions = append(conditions, object{"type": c, "status": "True",
			"lastTransitionTime": "2026-11-26T12:00:00Z"})
	}
	return object{"apiVersion": "v1", "kind": "Pod",
		"metadata": object{"name": name, "namespace": "default", "labels": object{"app.kubernetes.io/name": "shop",
			"app.kubernetes.io/instance": name, "pod-template-hash": "5d4f8c7b9"},
			"annotations": object{"shop.example/checksum": strings.Repeat("0123456789abcdef", 4)}},
		"spec": object{"nodeName": n.name, "containers": containers, "volumes": volumes},
		"status": object{"phase": "Running", "podIP": address, "podIPs": []object{{"ip": address}},
			"conditions": conditions, "containerStatuses": statuses,
			"startTime": "2026-11-26T12:00:00Z", "qosClass": "Burstable"}}
}
