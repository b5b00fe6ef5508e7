package bench

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"

	"culvert/integration/lab"
	"culvert/integration/lab/plan"
	"culvert/integration/lab/probe"
	"culvert/integration/lab/reference"
)

// benchPort is the first port of the cluster address; each port leads to the same port of its
// endpoint.
const benchPort = 8080

// takeServices measures a cluster address that a node serves to its pod, with an endpoint on the
// cluster's other node: by culvert node, and by kube-proxy's rules in nftables mode.
func (b *bench) takeServices(ctx context.Context, variants []*lab.Variant) error {
	c := &plan.V4[0]
	e := &probe.Ends{From: b.lab.Host(c.Name + "/" + c.Nodes[0].PodName),
		To: b.lab.Host(c.Name + "/" + c.Nodes[1].PodName), Target: c.Served, Port: benchPort}
	for run := range b.times.runs {
		for i := range variants {
			v := variants[(run+i)%len(variants)]
			b.say("run %d of %d, cluster address: %s", run+1, b.times.runs, v.Name)
			err := serving(ctx, b.lab, c, e, v, func() error {
				rate, err := streamRate(ctx, e, &b.times)
				if err != nil {
					return err
				}
				b.record(v, rowService, rate)
				rate, err = e.MeasureDials(ctx, b.times.warmUp, b.times.dials)
				if err == nil {
					b.record(v, rowServiceDials, rate)
				}
				return err
			})
			if err != nil {
				return fmt.Errorf("%s: cluster address: %w", v.Name, err)
			}
		}
	}
	return nil
}

// serving calls do while the first node of c serves what e asks for.
func serving(ctx context.Context, l *lab.Lab, c *plan.Cluster, e *probe.Ends, v *lab.Variant,
	do func() error) (err error) {
	n := l.Host(c.Name + "/" + c.Nodes[0].Name)
	if v.Reference {
		if err := n.Do(func() error { return reference.NFT(kubeProxyRules(c, e.To.Address)) }); err != nil {
			return err
		}
		defer func() {
			err = errors.Join(err, n.Do(func() error { return reference.NFT("delete table ip kube-proxy\n") }))
		}()
		return do()
	}
	var serve []lab.Object
	for i := range probe.Dialers {
		serve = append(serve, lab.Object{"name": fmt.Sprintf("bench-%d", i), "clusterIP": c.Served, "port": benchPort +
			i, "endpoints": []lab.Object{{"address": e.To.Address, "port": benchPort + i, "node": c.Nodes[1].Name}}})
	}
	return l.ServeOn(ctx, c, serve, do)
}

// kubeProxyTable is the table of kube-proxy of Kubernetes 1.35 in nftables mode for Services that
// have only cluster addresses, without its comments and names.
const kubeProxyTable = `table ip kube-proxy {
	set cluster-ips { type ipv4_addr; elements = { %[1]s }; }
	set nodeport-ips { type ipv4_addr; elements = { %[2]s }; }
	map no-endpoint-services { type ipv4_addr . inet_proto . inet_service : verdict; }
	map no-endpoint-nodeports { type inet_proto . inet_service : verdict; }
	map firewall-ips { type ipv4_addr . inet_proto . inet_service : verdict; }
	map service-nodeports { type inet_proto . inet_service : verdict; }
	chain firewall-check { ip daddr . meta l4proto . th dport vmap @firewall-ips; }
	chain nodeport-endpoints-check { ip daddr @nodeport-ips meta l4proto . th dport vmap @no-endpoint-nodeports; }
	chain service-endpoints-check { ip daddr . meta l4proto . th dport vmap @no-endpoint-services; }
	chain cluster-ips-check {
		ip daddr @cluster-ips reject
		ip daddr %[3]s drop
	}
	chain mark-for-masquerade { meta mark set meta mark or 0x4000; }
	chain masquerading {
		meta mark and 0x4000 == 0 return
		meta mark set meta mark xor 0x4000
		masquerade fully-random
	}
%[4]s
	map service-ips { type ipv4_addr . inet_proto . inet_service : verdict; elements = { %[5]s }; }
	chain services {
		ip daddr . meta l4proto . th dport vmap @service-ips
		ip daddr @nodeport-ips meta l4proto . th dport vmap @service-nodeports
	}
	chain filter-prerouting-pre-dnat { type filter hook prerouting priority dstnat - 10; ct state new jump firewall-check; }
	chain filter-output-pre-dnat { type filter hook output priority -110; ct state new jump firewall-check; }
	chain filter-input {
		type filter hook input priority filter
		ct state new jump nodeport-endpoints-check
		ct state new jump service-endpoints-check
	}
	chain filter-forward {
		type filter hook forward priority filter
		ct state new jump service-endpoints-check
		ct state new jump cluster-ips-check
	}
	chain filter-output {
		type filter hook output priority filter
		ct state new jump service-endpoints-check
		ct state new jump cluster-ips-check
	}
	chain nat-prerouting { type nat hook prerouting priority dstnat; jump services; }
	chain nat-output { type nat hook output priority -100; jump services; }
	chain nat-postrouting { type nat hook postrouting priority srcnat; jump masquerading; }
}
`

// kubeProxyRules serve the same as the file of culvert node.
func kubeProxyRules(c *plan.Cluster, endpoint netip.Addr) string {
	var chains, services strings.Builder
	for i := range probe.Dialers {
		port := benchPort + i
		fmt.Fprintf(&chains,
			"\tchain endpoint-%[1]d {\n\t\tip saddr %[2]s jump mark-for-masquerade\n\t\tmeta l4proto tcp dnat to %[2]s:%[1]d\n\t}\n"+
				"\tchain service-%[1]d {\n\t\tip daddr %[3]s ip saddr != %[4]s jump mark-for-masquerade\n\t\tnumgen random mod 1 vmap { 0 : goto endpoint-%[1]d }\n\t}\n",
			port, endpoint, c.Served, c.PodCIDR)
		fmt.Fprintf(&services, "%s . tcp . %d : goto service-%[2]d, ", c.Served, port)
	}
	return fmt.Sprintf(kubeProxyTable, c.Served, c.Nodes[0].Underlay, c.Services, chains.String(), services.String())
}
