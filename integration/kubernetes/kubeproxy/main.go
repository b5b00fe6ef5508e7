// Command kubeproxy is kube-proxy's nftables mode without an API server: it reads sets of Services
// and EndpointSlices, one line of JSON each, and serves the latest set. After it has taken a set,
// it prints a line to standard output.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"net"
	"os"
	"time"

	v1 "k8s.io/api/core/v1"
	discovery "k8s.io/api/discovery/v1"
	"k8s.io/client-go/tools/events"
	"k8s.io/kubernetes/pkg/proxy"
	"k8s.io/kubernetes/pkg/proxy/nftables"
	proxyutil "k8s.io/kubernetes/pkg/proxy/util"
)

// A set is the content of one line.
type set struct {
	Services []*v1.Service
	Slices   []*discovery.EndpointSlice
}

func main() {
	node := flag.String("node", "", "name of the node")
	address := flag.String("address", "", "IP address of the node, at which node ports are")
	pods := flag.String("pods", "", "CIDR of the cluster's pods")
	services := flag.String("services", "", "CIDR of the cluster's Services")
	flag.Parse()
	if err := run(*node, *address, *pods, *services); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(node, address, pods, services string) error {
	ip := net.ParseIP(address)
	family, bits := v1.IPv4Protocol, "/32"
	if ip.To4() == nil {
		family, bits = v1.IPv6Protocol, "/128"
	}
	const masqueradeBit = 14 // kube-proxy's default
	p, err := nftables.NewProxier(context.Background(), family, time.Hour, 0, false, masqueradeBit,
		proxyutil.NewDetectLocalByCIDR(pods),
		node, ip, &events.FakeRecorder{}, nil, []string{address + bits}, false)
	if err != nil {
		return err
	}
	p.OnServiceCIDRsChanged([]string{services})
	p.OnServiceSynced()
	p.OnEndpointSlicesSynced()
	go p.SyncLoop()
	return serve(p)
}

// serve passes the objects of each set to p in order: once the rules contain the last one, they
// contain all.
func serve(p proxy.Provider) error {
	var now set
	lines := bufio.NewScanner(os.Stdin)
	lines.Buffer(nil, 16<<20)
	for lines.Scan() {
		var next set
		if err := json.Unmarshal(lines.Bytes(), &next); err != nil {
			return err
		}
		for _, s := range now.Services {
			p.OnServiceDelete(s)
		}
		for _, s := range now.Slices {
			p.OnEndpointSliceDelete(s)
		}
		for _, s := range next.Services {
			p.OnServiceAdd(s)
		}
		for _, s := range next.Slices {
			p.OnEndpointSliceAdd(s)
		}
		now = next
		fmt.Println("taken")
	}
	return lines.Err()
}
