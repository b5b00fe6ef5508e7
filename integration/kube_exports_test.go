package integration

import (
	"errors"
	"fmt"
	"io"
	"net"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"culvert/integration/need"
)

// The Service of the tests: its server answers with its own address and the client's.
const (
	shopPort   = "80"
	shopTarget = "8080"
	followed   = time.Second // limits how long new clients get old endpoints

	// A part of kubeServices with 30 addresses, of which a peer's imports may have 8.
	exportServices = "10.96.0.0/27"
)

// shop is a Service of the cluster.
func shop(name string, labels object, spec object) object {
	with := object{"ports": []object{{"name": "http", "protocol": "TCP", "port": 80, "targetPort": "web"},
		{"name": "dns", "protocol": "UDP", "port": 53, "targetPort": 5353}}}
	for k, v := range spec {
		with[k] = v
	}
	return object{"apiVersion": "v1", "kind": "Service", "metadata": object{"name": name, "namespace": "shop",
		"labels": labels}, "spec": with}
}

// shopSlice returns the endpoints of a Service, as a controller would write them.
func shopSlice(name string, addresses ...string) object {
	endpoints := []object{}
	for _, a := range addresses {
		endpoints = append(endpoints, object{"addresses": []string{a}, "conditions": object{"ready": true}})
	}
	family, number := "IPv4", "-1"
	if len(addresses) > 0 && strings.Contains(addresses[0], ":") {
		family, number = "IPv6", "-6"
	}
	return object{"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": family,
		"endpoints": endpoints,
		"metadata": object{"name": name + number, "namespace": "shop",
			"labels": object{"kubernetes.io/service-name": name}},
		"ports": []object{{"name": "http", "protocol": "TCP", "port": 8080}, {"name": "dns", "protocol": "UDP",
			"port": 5353}}}
}

// keepShop serves a pod's port until the end of the test.
func keepShop(t *testing.T, pod *peerHost, address string) {
	t.Helper()
	pod.accept(t, "tcp", net.JoinHostPort(address, shopTarget), func(conn net.Conn) {
		client, _, _ := net.SplitHostPort(conn.RemoteAddr().String())
		fmt.Fprintf(conn, "%s sees %s\n", address, client)
	})
}

// visitShop returns the answer at an address.
func visitShop(from *peerHost, address string) (string, error) {
	conn, err := from.dialWithin(followed, "tcp", net.JoinHostPort(address, shopPort))
	if err != nil {
		return "", err
	}
	defer conn.Close()
	said, err := io.ReadAll(conn)
	return string(said), err
}

// awaitVisit waits until the answer at an address begins with want.
func awaitVisit(t *testing.T, from *peerHost, address, want string) {
	t.Helper()
	eventually(t, fmt.Sprintf("a visit to %s is answered by %q", address, want), func() error {
		said, err := visitShop(from, address)
		if err == nil && !strings.HasPrefix(said, want) {
			err = fmt.Errorf("the answer is %q", said)
		}
		return err
	})
}

// imported returns the ClusterIP of an imported Service and the address behind it.
func (p *peeringLab) imported(namespace, name string) (clusterIP, address string, err error) {
	at := object{"name": name, "namespace": namespace}
	service, err := p.api.admin.get(object{"apiVersion": "v1", "kind": "Service", "metadata": at})
	if err != nil {
		return "", "", err
	}
	slice, err := p.api.admin.get(object{"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "metadata": at})
	if err != nil {
		return "", "", err
	}
	clusterIP, _ = field(service, "spec", "clusterIP").(string)
	if owners, _ := field(service, "metadata", "ownerReferences").([]any); len(owners) != 1 || field(owners[0].(object),
		"name") != "culvert-imports-milan" {
		return "", "", fmt.Errorf("the Service's owners are %v, want the Role that lets the gateway write it", owners)
	}
	endpoints, _ := slice["endpoints"].([]any)
	if len(endpoints) != 1 || field(slice, "metadata", "labels", "kubernetes.io/service-name") != name {
		return "", "", fmt.Errorf("want one endpoint of Service %s: %v", name, slice)
	}
	return clusterIP, fmt.Sprint(endpoints[0].(object)["addresses"].([]any)[0]), nil
}

// awaitImport waits until an imported Service has its endpoint, or until it has none.
func (p *peeringLab) awaitImport(namespace, name string, there bool) (clusterIP, address string) {
	p.t.Helper()
	eventually(p.t, fmt.Sprintf("%s: Service %s/%s has its endpoint: %t", p.name, namespace, name, there),
		func() (err error) {
			clusterIP, address, err = p.imported(namespace, name)
			if refused := new(kubeError); !there && errors.As(err, &refused) && refused.Code == 404 {
				return nil
			}
			switch {
			case (err == nil) == there:
				return nil
			case there:
				return fmt.Errorf("%w; %s; gateway: %s", err, p.condition("Imported"), p.gateway.output())
			default: // the Peering may be gone
				return fmt.Errorf("it has; gateway: %s", p.gateway.output())
			}
		})
	return clusterIP, address
}

// awaitNoImport waits until a Service is not there.
func (p *peeringLab) awaitNoImport(namespace, name string) {
	p.t.Helper()
	eventually(p.t, fmt.Sprintf("%s: Service %s/%s is not there", p.name, namespace, name), func() error {
		_, err := p.api.admin.get(object{"apiVersion": "v1", "kind": "Service", "metadata": object{"name": name,
			"namespace": namespace}})
		if refused := new(kubeError); errors.As(err, &refused) && refused.Code == 404 {
			return nil
		}
		return fmt.Errorf("it is (%v); gateway: %s", err, p.gateway.output())
	})
}

// setImports changes the namespace into which this cluster imports Services.
func (p *peeringLab) setImports(namespace string) {
	p.t.Helper()
	p.imports = namespace
	with, _ := p.keyed()
	p.apply(with)
}

func namespace(name string) object {
	return object{"apiVersion": "v1", "kind": "Namespace", "metadata": object{"name": name}}
}

// TestKubeExports: pods of rome use a Service of milan under a name in their own cluster, through
// the tunnel. milan needs no kube-proxy, and the gateways have no rights but those of the
// manifests.
func TestKubeExports(t *testing.T) {
	isolated(t, func(t *testing.T) {
		rome, milan := newPeeringLabs(t, "--service-cluster-ip-range="+exportServices)
		labs := []*peeringLab{rome, milan}
		rome.apply(namespace("milan"))
		milan.apply(namespace("shop"))
		for _, p := range labs {
			p.install()
			p.masquerade()
		}
		rome.template("--peering=milan", "--imports=milan")
		rome.api.awaitRight(t, rome.gatewayUser(), "create", "/services", "milan")
		rome.api.awaitRight(t, rome.gatewayUser(), "create", "discovery.k8s.io/endpointslices", "milan")
		milan.api.awaitRight(t, milan.gatewayUser(), "list", "discovery.k8s.io/endpointslices", "")
		for _, p := range labs {
			p.startGateway("gateway-1")
			for i := range kubeNodes {
				p.startAgent(i)
			}
		}
		rome.imports = "milan"
		rome.meet(milan)
		milan.meet(rome)
		for _, p := range labs {
			p.awaitCondition("NodesReady", "True")
			p.awaitCondition("Connected", "True")
		}
		for i := range kubeNodes {
			keepShop(t, milan.pods[i], milan.pod(&kubeNodes[i], 5))
		}
		exportLabel := object{"culvert/export": "true"}
		milan.apply(shop("web", exportLabel, nil), shopSlice("web", milan.pod(&kubeNodes[0], 5)))
		clusterIP, address := rome.awaitImport("milan", "web-shop", true)
		t.Logf("Service milan/web-shop has %s, and stands for %s", clusterIP, address)
		testExportUsed(t, rome, milan, clusterIP, address)
		t.Run("Services of a node", func(t *testing.T) { testExportByServices(t, rome, milan, clusterIP) })
		t.Run("endpoints change", func(t *testing.T) { testExportEndpoints(t, rome, milan, address) })
		t.Run("gateway begins anew", func(t *testing.T) { testExportRestart(t, rome, milan, clusterIP, address) })
		t.Run("refused", func(t *testing.T) { testExportRefused(t, rome, milan, exportLabel) })
		t.Run("put right", func(t *testing.T) { testImportPutRight(t, rome, clusterIP, address) })
		t.Run("bait", func(t *testing.T) { testBait(t, rome, milan, exportLabel) })
		t.Run("shares", func(t *testing.T) { testExportShares(t, rome, milan, exportLabel) })
		t.Run("another namespace", func(t *testing.T) { testImportNamespace(t, rome) })
		t.Run("no longer exported", func(t *testing.T) {
			milan.apply(shop("web", object{"culvert/export": "false"}, nil))
			rome.awaitImport("milan", "web-shop", false)
			milan.awaitCondition("Exported", "none")
			if said, err := visitShop(rome.pods[0], address); err == nil {
				t.Errorf("the Service is no longer exported, but %s answers: %s", address, said)
			}
			milan.apply(shop("web", exportLabel, nil))
			if _, again := rome.awaitImport("milan", "web-shop", true); again != address {
				t.Errorf("the Service is exported again at %s, want its former address %s", again, address)
			}
		})
		t.Run("an export goes", func(t *testing.T) { testExportGoes(t, rome, milan, exportLabel) })
		t.Run("Peering deleted", func(t *testing.T) {
			need.NoError(t, rome.api.admin.delete(rome.peering()))
			rome.awaitNoImport("milan", "web-shop")
			rome.awaitNoImport("milan", "echo-shop")
		})
		requireWithinExportRights(t, rome, milan)
	}, kubernetes)
}

// testExportUsed: a pod reaches the Service at its ClusterIP, which a rule translates as kube-proxy
// would, over TCP and UDP. The server sees the pod's address.
func testExportUsed(t *testing.T, rome, milan *peeringLab, clusterIP, address string) {
	rome.nodes[1].feed(fmt.Sprintf(
		"table ip proxy { chain prerouting { type nat hook prerouting priority -100; ip daddr %s dnat to %s; }; }\n",
		clusterIP, address), "nft", "-f", "-")
	client, server := rome.pod(&kubeNodes[1], 5), milan.pod(&kubeNodes[0], 5)
	want := server + " sees " + rome.seen(client)
	awaitVisit(t, rome.pods[1], clusterIP, want+"\n")
	l, err := milan.pods[0].listenPacket("udp4", server+":5353")
	need.NoError(t, err)
	defer l.Close()
	conn, err := rome.pods[1].dial("udp4", clusterIP+":53")
	need.NoError(t, err)
	defer conn.Close()
	eventually(t, "a datagram through the Service", func() error { // one may be lost
		if _, err := conn.Write([]byte("name")); err != nil {
			return err
		}
		b := make([]byte, 16)
		l.SetReadDeadline(time.Now().Add(100 * time.Millisecond))
		n, from, err := l.ReadFrom(b)
		if err == nil && (string(b[:n]) != "name" || from.(*net.UDPAddr).IP.String() != rome.seen(client)) {
			t.Errorf("the server gets %q from %v, want \"name\" from %s", b[:n], from, rome.seen(client))
		}
		return err
	})
}

// testExportByServices: a culvert node that serves Services, too, does not change the source of
// packets that pods send to the peer.
func testExportByServices(t *testing.T, rome, milan *peeringLab, clusterIP string) {
	const rbac = "rbac.authorization.k8s.io/v1"
	rome.apply(object{"apiVersion": rbac, "kind": "ClusterRole", "metadata": object{"name": "services"},
		"rules": []object{
			{"apiGroups": []string{"discovery.k8s.io"}, "resources": []string{"endpointslices"},
				"verbs": []string{"list", "watch"}}}},
		object{"apiVersion": rbac, "kind": "ClusterRoleBinding", "metadata": object{"name": "services"},
			"roleRef":  object{"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "services"},
			"subjects": []object{{"kind": "ServiceAccount", "name": "culvert-node", "namespace": agentNamespace}}})
	rome.api.awaitRight(t, agentUser, "list", "discovery.k8s.io/endpointslices", "")
	file := filepath.Join(t.TempDir(), "node.yaml")
	writeReadable(t, file, fmt.Sprintf("services: {addresses: [%s], pods: [%s], serviceCIDRs: [%s]}\n", rome.address(1),
		rome.podCIDR(), kubeServices))
	rome.endAgent(0, syscall.SIGTERM)
	rome.startAgent(0, "--services=all", "--config", file)
	client, server := rome.pod(&kubeNodes[0], 5), milan.pod(&kubeNodes[0], 5)
	want := server + " sees " + rome.seen(client)
	awaitVisit(t, rome.pods[0], clusterIP, want+"\n")
	rome.awaitAgentStatus(0, "cv-milan", "milan/web-shop")
	rome.endAgent(0, syscall.SIGTERM)
	rome.startAgent(0)
	rome.awaitAgentStatus(0, "gateway answers")
}

// testExportEndpoints: new clients reach new endpoints within a second, and nothing while there are
// none.
func testExportEndpoints(t *testing.T, rome, milan *peeringLab, address string) {
	for _, n := range []int{1, 0, 1} {
		server := milan.pod(&kubeNodes[n], 5)
		milan.apply(shopSlice("web", server))
		began := time.Now()
		awaitVisit(t, rome.pods[0], address, server+" ")
		if took := time.Since(began); took > followed {
			t.Errorf("the new endpoint serves after %v, want at most %v", took, followed)
		} else {
			t.Logf("the new endpoint serves after %v", took.Round(time.Millisecond))
		}
	}
	milan.apply(shopSlice("web"))
	eventually(t, "nobody serves", func() error {
		if said, err := visitShop(rome.pods[0], address); err == nil {
			return errors.New(said)
		}
		return nil
	})
	milan.apply(shopSlice("web", milan.pod(&kubeNodes[1], 5)))
	awaitVisit(t, rome.pods[0], address, "")
}

// testExportRestart: imports stay while the peer's gateway is down, and the next gateway of either
// side continues with the same addresses.
func testExportRestart(t *testing.T, rome, milan *peeringLab, clusterIP, address string) {
	for _, p := range []*peeringLab{milan, rome} {
		need.NoError(t, p.gateway.cmd.Process.Signal(syscall.SIGKILL))
		<-p.gateway.ended
		if p == milan {
			rome.awaitCondition("Connected", "False PeerSilent")
		}
		if ip, at, err := rome.imported("milan", "web-shop"); err != nil || ip != clusterIP || at != address {
			t.Errorf("while %s's gateway is down: ClusterIP %s for %s, want %s for %s (%v)", p.name, ip, at, clusterIP,
				address, err)
		}
		p.startGateway("gateway-2")
		awaitVisit(t, rome.pods[0], address, "")
		p.awaitCondition("Connected", "True")
		if ip, at, err := rome.imported("milan", "web-shop"); err != nil || ip != clusterIP || at != address {
			t.Errorf("with %s's next gateway: ClusterIP %s for %s, want %s for %s (%v)", p.name, ip, at, clusterIP,
				address, err)
		}
	}
	rome.awaitCondition("Imported", "True")
	milan.awaitCondition("Exported", "True")
}

// testExportRefused: a headless Service is refused with an Event. A Service that already has the
// name of an import is left alone.
func testExportRefused(t *testing.T, rome, milan *peeringLab, exportLabel object) {
	event := func(p *peeringLab, what string) {
		t.Helper()
		p.api.awaitEvent(t, startTimeout, peeringNamespace, what, func(_ object, message string) bool {
			return strings.Contains(message, what)
		})
	}
	headless := shop("nobody", exportLabel, object{"clusterIP": "None"})
	milan.apply(headless)
	event(milan, "Service shop/nobody: spec.clusterIP: a headless Service")
	milan.awaitCondition("Exported", "False Refused: Service shop/nobody: spec.clusterIP")
	need.NoError(t, milan.api.admin.delete(headless))
	milan.awaitCondition("Exported", "True")

	own := shop("api-shop", nil, object{"selector": object{"app": "own"}})
	own["metadata"].(object)["namespace"] = "milan"
	rome.apply(own)
	before := mustObject(t)(rome.api.admin.get(own))
	api := shop("api", exportLabel, nil)
	milan.apply(api, shopSlice("api", milan.pod(&kubeNodes[0], 5)))
	event(rome, "Service milan/api-shop, for the peer's shop/api: another one is there that culvert has not made")
	rome.awaitCondition("Imported", "False Refused: Service milan/api-shop")
	if after := mustObject(t)(rome.api.admin.get(own)); fmt.Sprint(after) != fmt.Sprint(before) {
		t.Errorf("the Service has changed:\n%v\nwant it as it was:\n%v", after, before)
	}
	need.NoError(t, milan.api.admin.delete(api))
	rome.awaitCondition("Imported", "True")
	if _, err := rome.api.admin.get(own); err != nil {
		t.Error(err)
	}
}

// testImportPutRight: the gateway undoes what others change in an import.
func testImportPutRight(t *testing.T, rome *peeringLab, clusterIP, address string) {
	at := object{"name": "web-shop", "namespace": "milan"}
	service := object{"apiVersion": "v1", "kind": "Service", "metadata": at,
		"spec": object{"selector": object{"app": "other"}}}
	rome.apply(service, object{"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "metadata": at,
		"addressType": "IPv4",
		"endpoints":   []object{{"addresses": []string{"203.0.113.9"}}}, "ports": []object{}})
	eventually(t, "the selector is gone, and the endpoint is restored", func() error {
		stored, err := rome.api.admin.get(service)
		if err != nil {
			return err
		}
		ip, now, err := rome.imported("milan", "web-shop")
		if selector := field(stored, "spec", "selector"); selector != nil || ip != clusterIP || now != address {
			return fmt.Errorf("selector %v, %s for %s, %v", selector, ip, now, err)
		}
		return err
	})
	if _, err := visitShop(rome.pods[0], address); err != nil {
		t.Error(err)
	}
}

// testBait: a Service in another namespace that looks like an import, and is there to stay, keeps
// no other Service away.
func testBait(t *testing.T, rome, milan *peeringLab, exportLabel object) {
	rome.apply(namespace("evil"))
	bait := shop("bait", object{"culvert.io/imported-by": "milan"}, nil)
	for k, v := range (object{"namespace": "evil", "finalizers": []string{"example.org/stay"},
		"ownerReferences": []object{
			{"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role", "name": "culvert-imports-milan",
				"uid": "x"}}}) {
		bait["metadata"].(object)[k] = v
	}
	rome.apply(bait)
	again := shop("again", exportLabel, nil)
	milan.apply(again)
	rome.awaitImport("milan", "again-shop", true)
	rome.awaitCondition("Imported", "True")
	need.NoError(t, milan.api.admin.delete(again))
	rome.awaitImport("milan", "again-shop", false)
	if _, err := rome.api.admin.get(bait); err != nil {
		t.Error(err)
	}
}

// testExportGoes: connections stay while the label is away for two seconds, after which the import
// has its ClusterIP again, and when the Service is deleted. New clients are refused meanwhile.
func testExportGoes(t *testing.T, rome, milan *peeringLab, exportLabel object) {
	server := milan.pod(&kubeNodes[0], 5)
	milan.pods[0].accept(t, "tcp4", server+":7777", func(conn net.Conn) { io.Copy(conn, conn) })
	echo, slice := shop("echo", exportLabel, nil), shopSlice("echo", server)
	slice["ports"] = []object{{"name": "http", "protocol": "TCP", "port": 7777}}
	milan.apply(echo, slice)
	clusterIP, address := rome.awaitImport("milan", "echo-shop", true)
	rome.nodes[1].feed(fmt.Sprintf(
		"table ip echo { chain prerouting { type nat hook prerouting priority -100; ip daddr %s dnat to %s; }; }\n",
		clusterIP, address), "nft", "-f", "-")
	dial := func() (net.Conn, error) {
		return rome.pods[1].dialWithin(followed, "tcp4", net.JoinHostPort(clusterIP, shopPort))
	}
	var talks []net.Conn
	eventually(t, "10 connections to the Service", func() error {
		for len(talks) < 10 {
			conn, err := dial()
			if err != nil {
				return err
			}
			t.Cleanup(func() { conn.Close() })
			talks = append(talks, conn)
		}
		return nil
	})
	talk := func(what string) {
		t.Helper()
		lost := 0
		for _, conn := range talks {
			conn.SetDeadline(time.Now().Add(startTimeout))
			_, err := conn.Write([]byte("echo"))
			if err == nil {
				_, err = io.ReadFull(conn, make([]byte, 4))
			}
			if err != nil {
				lost++
			}
		}
		if lost > 0 {
			t.Fatalf("%s: %d of %d connections are lost; gateway: %s", what, lost, len(talks), milan.gateway.output())
		}
	}
	refused := func() error {
		conn, err := dial()
		if err != nil {
			return nil
		}
		conn.Close()
		return errors.New("a new one is accepted")
	}
	talk("at first")
	milan.apply(shop("echo", object{"culvert/export": "false"}, nil))
	for end := time.Now().Add(2 * time.Second); time.Now().Before(end); {
		talk("without the label")
	}
	rome.awaitImport("milan", "echo-shop", false)
	eventually(t, "new connections are refused", refused)
	milan.apply(echo)
	if again, _ := rome.awaitImport("milan", "echo-shop", true); again != clusterIP {
		t.Errorf("the export has returned with ClusterIP %s, want %s", again, clusterIP)
	}
	talk("with the label again")
	need.NoError(t, milan.api.admin.delete(echo))
	need.NoError(t, milan.api.admin.delete(slice))
	rome.awaitImport("milan", "echo-shop", false)
	eventually(t, "new connections are refused", refused)
	talk("without the Service")
}

// testExportShares: a namespace that exports as many ports as there may be, and a peer that exports
// more Services than this cluster has ClusterIPs, keep nobody else's away.
func testExportShares(t *testing.T, rome, milan *peeringLab, exportLabel object) {
	exported := func(name string, count int) object {
		ports := []object{}
		for n := range count {
			ports = append(ports, object{"name": fmt.Sprint("p", n), "protocol": "TCP", "port": n + 1})
		}
		o := shop(name, exportLabel, object{"ports": ports})
		o["metadata"].(object)["namespace"] = "evil"
		return o
	}
	milan.apply(namespace("evil"))
	var all []object
	for n, ports := range []int{100, 100, 100, 100, 98} { // with the two of web, these are all that there may be
		all = append(all, exported(fmt.Sprint("greedy", n), ports))
	}
	milan.apply(all...)
	rome.awaitImport("milan", "greedy4-evil", true)
	late := shop("late", exportLabel, nil)
	milan.apply(late)
	rome.awaitImport("milan", "late-shop", true)
	milan.awaitCondition("Exported", "False Refused: Service evil/greedy")
	for _, o := range append(all, late) {
		need.NoError(t, milan.api.admin.delete(o))
	}
	milan.awaitCondition("Exported", "True")

	all = nil
	for n := range 32 {
		all = append(all, exported(fmt.Sprintf("bait%02d", n), 1))
	}
	milan.apply(all...)
	rome.awaitCondition("Imported",
		"False Refused: 25 of the peer's Services are not imported: they may have 8 ClusterIPs")
	if _, _, err := rome.imported("milan", "web-shop"); err != nil {
		t.Error(err)
	}
	own := shop("own", nil, nil)
	own["metadata"].(object)["namespace"] = "evil"
	rome.apply(own)
	need.NoError(t, rome.api.admin.delete(own))
	for _, o := range all {
		need.NoError(t, milan.api.admin.delete(o))
	}
	rome.awaitCondition("Imported", "True")
}

// testImportNamespace: when spec.imports changes, imports leave the former namespace. If the
// gateway has no rights in the new one, a condition names it.
func testImportNamespace(t *testing.T, rome *peeringLab) {
	rome.setImports("elsewhere")
	rome.awaitNoImport("milan", "web-shop")
	rome.awaitCondition("Imported", "False Refused: spec.imports: the gateway may not write to namespace elsewhere")
	rome.setImports("milan")
	rome.awaitImport("milan", "web-shop", true)
	rome.awaitCondition("Imported", "True")
	service := object{"apiVersion": "v1", "kind": "Service", "metadata": object{"name": "web-shop",
		"namespace": "milan"}}
	need.NoError(t, rome.api.admin.delete(service))
	rome.awaitImport("milan", "web-shop", true)
}

// requireWithinExportRights: the gateways have used each of their rights to Services, and nothing
// was forbidden except in the namespace where they have none.
func requireWithinExportRights(t *testing.T, rome, milan *peeringLab) {
	t.Helper()
	for _, p := range []*peeringLab{rome, milan} {
		rights := []string{"list services", "watch services"}
		if p == milan {
			rights = append(rights, "list endpointslices", "watch endpointslices")
		} else {
			rights = append(rights, "get roles", "list servicecidrs")
			for _, verb := range []string{"create", "update", "delete"} {
				rights = append(rights, verb+" services", verb+" endpointslices")
			}
		}
		requireUsed(t, p.gatewayUser(), p.api.requested(t, p.gatewayUser(), "/namespaces/elsewhere/",
			"/namespaces/evil/"), rights...)
	}
}
