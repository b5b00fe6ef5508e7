package integration

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"sigs.k8s.io/yaml"

	"culvert/integration/need"
)

// A multiclusterLab is a cluster in which culvert multicluster runs.
type multiclusterLab struct {
	*peeringLab
	controller *peerProcess
}

// newMulticlusterLab installs everything, and starts gateway, agents and culvert multicluster.
func newMulticlusterLab(t *testing.T, p *peeringLab) *multiclusterLab {
	t.Helper()
	for document := range strings.SplitSeq(p.client.run(os.Getenv(binaryEnv), "multicluster", "crds"), "\n---\n") {
		var o object
		need.NoError(t, yaml.Unmarshal([]byte(document), &o))
		p.apply(o)
	}
	p.apply(namespace("shop"))
	values := filepath.Join(t.TempDir(), "values.yaml")
	writeReadable(t, values, "multicluster: {enabled: true}\n")
	p.install("--values=" + values)
	p.masquerade()
	m := &multiclusterLab{peeringLab: p}
	m.awaitAccount()
	p.startGateway("gateway-1")
	for i := range kubeNodes {
		p.startAgent(i)
	}
	m.start()
	return m
}

// awaitAccount waits until culvert multicluster has its rights.
func (m *multiclusterLab) awaitAccount() {
	m.t.Helper()
	for _, right := range []string{"list multicluster.x-k8s.io/serviceexports", "create /services",
		"create discovery.k8s.io/endpointslices"} {
		verb, resource, _ := strings.Cut(right, " ")
		m.api.awaitRight(m.t, m.account(), verb, resource, "")
	}
	m.api.awaitRight(m.t, m.account(), "list", "culvert.io/peerexports", peeringNamespace)
}

func (m *multiclusterLab) account() string {
	return "system:serviceaccount:" + peeringNamespace + ":culvert-multicluster"
}

func (m *multiclusterLab) start() {
	m.controller = m.client.start(nil, os.Getenv(binaryEnv), "multicluster", "--namespace="+peeringNamespace,
		"--kubeconfig="+m.api.kubeconfigOf(peeringNamespace, "culvert-multicluster"))
}

// share makes the Peering share the namespaces, in both directions.
func (m *multiclusterLab) share(namespaces ...string) {
	m.t.Helper()
	with, spec := m.keyed()
	spec["services"] = object{"export": namespaces, "import": namespaces}
	m.apply(with)
}

// endpoints returns the endpoints that the EndpointSlices of a multi-cluster Service have, each as
// CLUSTER ADDRESS.
func (m *multiclusterLab) endpoints(name string) (all []string, err error) {
	list, err := m.api.admin.list("discovery.k8s.io/v1", "EndpointSlice", "shop")
	for _, o := range list {
		labels, _ := field(o, "metadata", "labels").(object)
		if labels["multicluster.kubernetes.io/service-name"] != name {
			continue
		}
		endpoints, _ := o["endpoints"].([]any)
		for _, e := range endpoints {
			for _, a := range e.(object)["addresses"].([]any) {
				all = append(all, fmt.Sprint(labels["multicluster.kubernetes.io/source-cluster"], " ", a))
			}
		}
	}
	return all, err
}

// awaitEndpoints waits until a multi-cluster Service has these endpoints, in any order.
func (m *multiclusterLab) awaitEndpoints(name string, want ...string) {
	m.t.Helper()
	eventually(m.t, fmt.Sprintf("%s: endpoints of %s: %q", m.name, name, want), func() error {
		got, err := m.endpoints(name)
		if err == nil && !sameTexts(got, want) {
			err = fmt.Errorf(
				"they are %q; multicluster: %s; gateway: %s",
				got,
				m.controller.output(),
				m.gateway.output(),
			)
		}
		return err
	})
}

// awaitReady waits until the endpoints of a multi-cluster Service that are ready are of these
// clusters, as many each.
func (m *multiclusterLab) awaitReady(name string, clusters ...string) {
	m.t.Helper()
	const lost = 30 * time.Second // until a silent peer's are not ready
	eventuallyWithin(m.t, lost+startTimeout, fmt.Sprintf("%s: ready endpoints of %s in %q", m.name, name, clusters),
		func() error {
			list, err := m.api.admin.list("discovery.k8s.io/v1", "EndpointSlice", "shop")
			var ready []string
			for _, o := range list {
				labels, _ := field(o, "metadata", "labels").(object)
				if labels["multicluster.kubernetes.io/service-name"] != name {
					continue
				}
				for _, e := range o["endpoints"].([]any) {
					if field(e.(object), "conditions", "ready") == true {
						ready = append(ready, fmt.Sprint(labels["multicluster.kubernetes.io/source-cluster"]))
					}
				}
			}
			if err == nil && !sameTexts(ready, clusters) {
				err = fmt.Errorf("they are in %q; multicluster: %s", ready, m.controller.output())
			}
			return err
		})
}

func sameTexts(a, b []string) bool {
	have := map[string]int{}
	for _, x := range a {
		have[x]++
	}
	for _, x := range b {
		have[x]--
	}
	for _, n := range have {
		if n != 0 {
			return false
		}
	}
	return true
}

// awaitAddress waits for the address of a ServiceImport.
func (m *multiclusterLab) awaitAddress(name string) (ip string) {
	m.t.Helper()
	eventually(m.t, m.name+": ServiceImport "+name, func() error {
		o, err := m.api.admin.get(object{"apiVersion": mcsVersion, "kind": "ServiceImport",
			"metadata": object{"name": name, "namespace": "shop"}})
		if err != nil {
			return fmt.Errorf("%w; multicluster: %s", err, m.controller.output())
		}
		ips, _ := field(o, "spec", "ips").([]any)
		if len(ips) != 1 {
			return fmt.Errorf("its addresses are %v", ips)
		}
		ip = fmt.Sprint(ips[0])
		return nil
	})
	return ip
}

func (m *multiclusterLab) awaitNoImport(name string) {
	m.t.Helper()
	eventually(m.t, m.name+": no ServiceImport "+name, func() error {
		_, err := m.api.admin.get(object{"apiVersion": mcsVersion, "kind": "ServiceImport",
			"metadata": object{"name": name, "namespace": "shop"}})
		if refused := new(kubeError); errors.As(err, &refused) && refused.Code == 404 {
			return nil
		}
		return fmt.Errorf("it is there (%v); multicluster: %s", err, m.controller.output())
	})
}

// TestKubeMulticluster: a Service that milan exports is one Service in both clusters, whose pod
// CIDRs are the same. A client in rome reaches milan's pods themselves, and they see its own
// address as milan sees it. Gateways write nothing but the PeerExports of their Peering.
func TestKubeMulticluster(t *testing.T) {
	isolated(t, func(t *testing.T) {
		first, second := newPeeringLabs(t)
		rome, milan := newMulticlusterLab(t, first), newMulticlusterLab(t, second)
		rome.meet(milan.peeringLab)
		milan.meet(rome.peeringLab)
		for _, m := range []*multiclusterLab{rome, milan} {
			m.share("shop")
			m.awaitCondition("NodesReady", "True")
			m.awaitCondition("Connected", "True")
		}
		for i := range kubeNodes {
			keepShop(t, milan.pods[i], milan.pod(&kubeNodes[i], 5))
		}
		here, there := milan.pod(&kubeNodes[0], 5), milan.pod(&kubeNodes[1], 5)
		milan.apply(shop("web", nil, nil), shopSlice("web", here), serviceExport("web"))
		rome.awaitEndpoints("web", "milan "+milan.seen(here))
		milan.awaitEndpoints("web", "milan "+here)
		address := rome.awaitAddress("web")
		t.Logf("shop/web is %s in rome and %s in milan", address, milan.awaitAddress("web"))
		t.Run("shown", func(t *testing.T) {
			for m, want := range map[*multiclusterLab]string{rome: "shop/web " + address + " – milan 1",
				milan: " rome milan 1"} {
				out := m.client.run(os.Getenv(binaryEnv), "services", "--kubeconfig="+m.api.kubeconfig(adminToken))
				if !strings.Contains(strings.Join(strings.Fields(out), " "), want) {
					t.Errorf("culvert services in %s: %s, want %q", m.name, out, want)
				}
			}
		})
		t.Run("used", func(t *testing.T) {
			client := rome.pod(&kubeNodes[1], 5)
			rome.nodes[1].feed(fmt.Sprintf(
				"table ip proxy { chain prerouting { type nat hook prerouting priority -100; ip daddr %s tcp dport 80 dnat to %s:8080; }; }\n",
				address,
				milan.seen(here),
			), "nft", "-f", "-")
			awaitVisit(t, rome.pods[1], address, here+" sees "+rome.seen(client)+"\n")
		})
		t.Run("endpoints change", func(t *testing.T) {
			for _, server := range []string{there, here} {
				began := time.Now()
				milan.apply(shopSlice("web", server))
				rome.awaitEndpoints("web", "milan "+milan.seen(server))
				if took := time.Since(began); took > followed {
					t.Errorf("the new endpoint is there after %v, want at most %v", took, followed)
				}
			}
		})
		t.Run("begins anew", func(t *testing.T) {
			need.NoError(t, rome.controller.cmd.Process.Signal(syscall.SIGKILL))
			<-rome.controller.ended
			milan.apply(shopSlice("web", here, there))
			rome.start()
			rome.awaitEndpoints("web", "milan "+milan.seen(here), "milan "+milan.seen(there))
			if again := rome.awaitAddress("web"); again != address {
				t.Errorf("shop/web has become %s, want %s", again, address)
			}
		})
		t.Run("both export", func(t *testing.T) {
			own := rome.pod(&kubeNodes[0], 5)
			rome.apply(shop("web", nil, nil), shopSlice("web", own), serviceExport("web"))
			rome.awaitEndpoints("web", "rome "+own, "milan "+milan.seen(here), "milan "+milan.seen(there))
			milan.awaitEndpoints("web", "rome "+rome.seen(own), "milan "+here, "milan "+there)
			need.NoError(t, rome.api.admin.delete(serviceExport("web")))
			milan.awaitEndpoints("web", "milan "+here, "milan "+there)
		})
		t.Run("not admitted", func(t *testing.T) {
			rome.share("other")
			rome.awaitNoImport("web")
			rome.share("shop")
			rome.awaitEndpoints("web", "milan "+milan.seen(here), "milan "+milan.seen(there))
		})
		t.Run("no longer exported", func(t *testing.T) {
			need.NoError(t, milan.api.admin.delete(serviceExport("web")))
			rome.awaitNoImport("web")
			milan.awaitNoImport("web")
		})
		t.Run("exported again", func(t *testing.T) {
			milan.apply(serviceExport("web"))
			rome.awaitEndpoints("web", "milan "+milan.seen(here), "milan "+milan.seen(there))
			milan.share("other")
			rome.awaitNoImport("web")
			milan.share("shop")
			rome.awaitEndpoints("web", "milan "+milan.seen(here), "milan "+milan.seen(there))
		})
		t.Run("another ServiceImport", func(t *testing.T) { testForeignImport(t, rome, milan, here) })
		t.Run("only exports", func(t *testing.T) { testMulticlusterAdmission(t, rome, milan, here, there) })
		t.Run("gateway lost", func(t *testing.T) {
			need.NoError(t, milan.gateway.cmd.Process.Signal(syscall.SIGKILL))
			<-milan.gateway.ended
			rome.awaitCondition("Connected", "False")
			own := rome.pod(&kubeNodes[0], 5)
			rome.apply(shop("web", nil, nil), shopSlice("web", own), serviceExport("web"))
			rome.awaitEndpoints("web", "rome "+own, "milan "+milan.seen(here))
			rome.awaitReady("web", "rome")
			milan.startGateway("gateway-2")
			rome.awaitReady("web", "milan", "rome")
			rome.awaitCondition("Connected", "True")
			need.NoError(t, rome.api.admin.delete(serviceExport("web")))
			milan.apply(shopSlice("web", there))
			rome.awaitEndpoints("web", "milan "+milan.seen(there))
		})
		for _, m := range []*multiclusterLab{rome, milan} {
			for right := range m.api.requested(t, m.gatewayUser()) {
				if verb, resource, _ := strings.Cut(right, " "); (resource == "services" || resource == "endpointslices") &&
					verb != "list" &&
					verb != "watch" {
					t.Errorf("%s's gateway has asked to %s", m.name, right)
				}
			}
		}
	}, kubernetes)
}

// testForeignImport: a ServiceImport that others have made before stays as it is, and nothing is
// made beside it. Once it goes, the exported Service comes.
func testForeignImport(t *testing.T, rome, milan *multiclusterLab, server string) {
	foreign := object{"apiVersion": mcsVersion, "kind": "ServiceImport", "metadata": object{"name": "hand",
		"namespace": "shop"}, "spec": object{"type": "Headless", "ports": []object{{"port": 1}}}}
	rome.apply(foreign)
	before := mustObject(t)(rome.api.admin.get(foreign))
	milan.apply(shop("hand", nil, nil), shopSlice("hand", server), serviceExport("hand"))
	milan.awaitEndpoints("hand", "milan "+server)
	eventually(t, "it is said", func() error {
		if !strings.Contains(rome.controller.output(), "ServiceImport shop/hand: another one is there") {
			return fmt.Errorf("%s", rome.controller.output())
		}
		return nil
	})
	after := mustObject(t)(rome.api.admin.get(foreign))
	if was, is := field(before, "metadata", "resourceVersion"), field(after, "metadata", "resourceVersion"); was != is {
		t.Errorf("it was changed: %v", after)
	}
	if all, err := rome.endpoints("hand"); err != nil || len(all) > 0 {
		t.Errorf("beside it there is %q, %v", all, err)
	}
	need.NoError(t, rome.api.admin.delete(foreign))
	rome.awaitEndpoints("hand", "milan "+milan.seen(server))
	need.NoError(t, milan.api.admin.delete(serviceExport("hand")))
	rome.awaitNoImport("hand")
}

// testMulticlusterAdmission: with admit: Exports, rome's pods reach the endpoints that milan
// exports and no other pod, and a change is in force within a second.
func testMulticlusterAdmission(t *testing.T, rome, milan *multiclusterLab, here, there string) {
	with, spec := milan.keyed()
	spec["services"], spec["admit"] = object{"export": []string{"shop"}, "import": []string{"shop"}}, "Exports"
	milan.apply(with)
	client := rome.pods[1]
	visits := func(server string) error {
		conn, err := client.dialWithin(followed, "tcp4", milan.seen(server)+":"+shopTarget)
		if err == nil {
			conn.Close()
		}
		return err
	}
	for _, servers := range [][2]string{{here, there}, {there, here}, {here, there}} {
		open, shut := servers[0], servers[1]
		milan.apply(shopSlice("web", open))
		began := time.Now()
		await(t, "the other one is shut", func() bool { return visits(shut) != nil && visits(open) == nil })
		if took := time.Since(began); took > 2*followed { // a visit that is refused late takes one
			t.Errorf("it takes %v", took)
		}
		for range 20 {
			if visits(shut) == nil {
				t.Fatalf("%s is reached, which is not exported", shut)
			}
			need.NoError(t, visits(open))
		}
	}
	rome.awaitEndpoints("web", "milan "+milan.seen(here))
	milan.share("shop")
	await(t, "without admission, all is open", func() bool { return visits(there) == nil })
}

// TestKubeMulticlusterDual: in clusters of both families, a multi-cluster Service has an address of
// each, and the endpoints of each are seen by that family's remap. Its families come and go while
// the first address stays.
func TestKubeMulticlusterDual(t *testing.T) {
	isolated(t, func(t *testing.T) {
		first, second := newPeeringLabs6(t, both)
		rome, milan := newMulticlusterLab(t, first), newMulticlusterLab(t, second)
		rome.apply(namespace("milan"))
		rome.template("--peering=milan", "--imports=milan")
		rome.imports = "milan"
		rome.meet(milan.peeringLab)
		milan.meet(rome.peeringLab)
		for _, m := range []*multiclusterLab{rome, milan} {
			m.share("shop")
		}
		awaitPeerings(rome.peeringLab, milan.peeringLab)
		six, here := onlyIPv6Peers.of, milan.pod(&kubeNodes[0], 5)
		four4 := []string{"milan " + milan.seen(here)}
		six6 := []string{"milan " + six(milan.seen(here))}
		addresses := func(name, families string, n int) (ips []string) {
			eventually(t, fmt.Sprintf("ServiceImport %s has %s", name, families), func() error {
				o, err := rome.api.admin.get(object{"apiVersion": mcsVersion, "kind": "ServiceImport",
					"metadata": object{"name": name, "namespace": "shop"}})
				if err != nil {
					return fmt.Errorf("%w; multicluster: %s", err, rome.controller.output())
				}
				ips = nil
				all, _ := field(o, "spec", "ips").([]any)
				for _, ip := range all {
					ips = append(ips, fmt.Sprint(ip))
				}
				if got := fmt.Sprint(field(o, "spec", "ipFamilies")); got != families || len(ips) != n {
					return fmt.Errorf("it has %s, %v; multicluster: %s", got, ips, rome.controller.output())
				}
				return nil
			})
			return ips
		}
		dual := func(name string, families ...string) object {
			return shop(name, nil, object{"ipFamilies": families, "ipFamilyPolicy": map[int]string{1: "SingleStack",
				2: "RequireDualStack"}[len(families)]})
		}
		milan.apply(dual("web", "IPv4", "IPv6"), shopSlice("web", here), shopSlice("web", six(here)), serviceExport("web"),
			dual("six", "IPv6"), shopSlice("six", six(here)), serviceExport("six"),
			dual("four", "IPv4"), shopSlice("four", here), serviceExport("four"))
		rome.awaitEndpoints("web", append(four4, six6...)...)
		rome.awaitEndpoints("six", six6...)
		rome.awaitEndpoints("four", four4...)
		ips := addresses("web", "[IPv4 IPv6]", 2)
		addresses("six", "[IPv6]", 1)
		addresses("four", "[IPv4]", 1)
		for _, f := range both {
			target := f.of(milan.seen(here))
			exchange{from: rome.pods[1], to: milan.pods[0], listen: f.of(here), dial: target,
				source: f.of(rome.seen(rome.pod(&kubeNodes[1], 5))), bytes: kubeBytes}.run(t)
		}
		out := rome.client.run(os.Getenv(binaryEnv), "services", "--kubeconfig="+rome.api.kubeconfig(adminToken))
		if want := "shop/web " + strings.Join(ips, ",") + " – milan 1"; !strings.Contains(
			strings.Join(strings.Fields(out), " "), want) {
			t.Errorf("culvert services: %s, want %q", out, want)
		}
		t.Run("by the label", func(t *testing.T) { testExportDual(t, rome.peeringLab, milan.peeringLab) })
		milan.apply(shop("web", nil, object{"ipFamilyPolicy": "SingleStack"}))
		rome.awaitEndpoints("web", four4...)
		if now := addresses("web", "[IPv4]", 1); now[0] != ips[0] {
			t.Errorf("shop/web has become %s, want %s", now, ips[0])
		}
		milan.apply(shop("web", nil, object{"ipFamilyPolicy": "PreferDualStack"}))
		rome.awaitEndpoints("web", append(four4, six6...)...)
		if now := addresses("web", "[IPv4 IPv6]", 2); now[0] != ips[0] {
			t.Errorf("shop/web has become %s, want %s", now, ips[0])
		}
	}, kubernetes)
}

// testExportDual: a Service with the label is imported with the families that it has, and leads to
// endpoints of each.
func testExportDual(t *testing.T, rome, milan *peeringLab) {
	six, here := onlyIPv6Peers.of, milan.pod(&kubeNodes[0], 5)
	client := rome.seen(rome.pod(&kubeNodes[1], 5))
	for _, f := range both {
		keepShop(t, milan.pods[0], f.of(here))
	}
	labelled := func(policy string) object {
		return shop("old", object{"culvert/export": "true"}, object{"ipFamilyPolicy": policy})
	}
	milan.apply(labelled("RequireDualStack"), shopSlice("old", here), shopSlice("old", six(here)))
	at := map[string]string{}
	imported := func(families string) {
		t.Helper()
		eventually(t, "the import has "+families, func() error {
			service, err := rome.api.admin.get(object{"apiVersion": "v1", "kind": "Service",
				"metadata": object{"name": "old-shop", "namespace": "milan"}})
			if err != nil {
				return fmt.Errorf("%w; %s", err, rome.condition("Imported"))
			}
			clear(at)
			for _, name := range []string{"old-shop", "old-shop.ipv6"} {
				slice, err := rome.api.admin.get(object{"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
					"metadata": object{"name": name, "namespace": "milan"}})
				if err == nil {
					endpoint := slice["endpoints"].([]any)[0].(object)
					at[fmt.Sprint(slice["addressType"])] = fmt.Sprint(endpoint["addresses"].([]any)[0])
				}
			}
			if got := fmt.Sprint(field(service, "spec", "ipFamilies"), len(at)); got != families {
				return fmt.Errorf("it has %s, %v; %s", got, at, rome.condition("Imported"))
			}
			return nil
		})
	}
	imported("[IPv4 IPv6] 2")
	first := at["IPv4"]
	awaitVisit(t, rome.pods[1], at["IPv4"], here+" sees "+client+"\n")
	awaitVisit(t, rome.pods[1], at["IPv6"], six(here)+" sees "+six(client)+"\n")
	milan.apply(labelled("SingleStack"))
	imported("[IPv4] 1")
	if at["IPv4"] != first {
		t.Errorf("the Service is exported at %s, want %s as before", at["IPv4"], first)
	}
	awaitVisit(t, rome.pods[1], first, here+" sees "+client+"\n")
}
