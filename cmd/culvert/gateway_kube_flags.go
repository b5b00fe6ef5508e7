package main

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"culvert/gateway/config"
	"culvert/gateway/configfile"
)

// kubeFlags are the flags of culvert gateway --kube that --liqo lacks. Both share the others.
type kubeFlags struct {
	on                    bool
	podIPs, nodeNamespace string
	shared                *liqoFlags
}

func addKubeFlags(set *pflag.FlagSet, shared *liqoFlags) *kubeFlags {
	k := &kubeFlags{shared: shared}
	set.BoolVar(&k.on, "kube", false, "be the gateway of a Peering: --name and --namespace say of which one")
	set.StringVar(&k.podIPs, "pod-ips", os.Getenv("POD_IPS"),
		"with --kube: `ADDRESSES` of the gateway's pod (default: $POD_IPS)")
	set.StringVar(&k.nodeNamespace, "node-namespace", "culvert-nodes", "with --kube: `NAMESPACE` of TunnelNodes")
	return k
}

// withKube are the flags of --liqo that --kube has too.
var withKube = []string{"name", "namespace", "node-name", "pod-name", "listen-port", "geneve-port", "metrics-address",
	"health-probe-bind-address",
	"state", "kubeconfig", "leader-election", "leader-election-lease-duration", "leader-election-renew-deadline",
	"leader-election-retry-period"}

// check returns the faults of the given flags.
func (k *kubeFlags) check() error {
	var errs []error
	k.shared.given.Visit(func(f *pflag.Flag) {
		own := f.Name == "pod-ips" || f.Name == "node-namespace"
		switch {
		case k.on && f.Name != "kube" && !own && !slices.Contains(withKube, f.Name):
			errs = append(errs, fmt.Errorf("--%s: not with --kube", f.Name))
		case !k.on && own:
			errs = append(errs, fmt.Errorf("--%s: only with --kube; add it", f.Name))
		}
	})
	return errors.Join(errs...)
}

// kubeGateway is the parsed form of the flags.
type kubeGateway struct {
	base                                                  *config.Config
	name, namespace, node, pod, kubeconfig, nodeNamespace string
	addresses                                             []netip.Addr
	election                                              electionTimes
}

// read parses the flags, or returns everything that is wrong or missing.
func (k *kubeFlags) read() (*kubeGateway, error) {
	e := new(configfile.Errors)
	get := func(name string) string { return *k.shared.text[name] }
	g := &kubeGateway{
		base: &config.Config{State: get("state"), Control: config.ControlAuto, Log: config.Log{Level: "info",
			Format: "text"},
			ConnectionCheck: config.LiqoConnectionCheck},
		name: get("name"), namespace: cmp.Or(get("namespace"), os.Getenv("POD_NAMESPACE")),
		node: cmp.Or(get("node-name"), os.Getenv("NODE_NAME")),
		pod:  cmp.Or(get("pod-name"), os.Getenv("POD_NAME")), kubeconfig: get("kubeconfig"),
		nodeNamespace: k.nodeNamespace,
	}
	for flag, value := range map[string]string{"--name": g.name, "--namespace": g.namespace,
		"--node-namespace": g.nodeNamespace} {
		e.Name(flag, value, configfile.MaxLabel)
	}
	for flag, value := range map[string]string{"--node-name": g.node, "--pod-name": g.pod} {
		e.Name(flag, value, configfile.MaxDomain)
	}
	if k.podIPs == "" {
		e.Missing("--pod-ips")
	}
	for text := range strings.SplitSeq(k.podIPs, ",") {
		a, err := netip.ParseAddr(strings.TrimSpace(text))
		if err != nil && k.podIPs != "" {
			e.Add("--pod-ips", "%q is no address", text)
		}
		g.addresses = append(g.addresses, a)
	}
	c := g.base
	c.WireGuard.ListenPort = uint16(e.Int("--listen-port", configfile.Scalar(get("listen-port")),
		config.DefaultWireGuardPort, 1, 65535))
	c.Geneve.ListenPort = uint16(e.Int("--geneve-port", configfile.Scalar(get("geneve-port")),
		config.DefaultGenevePort, 1, 65535))
	if c.WireGuard.ListenPort == c.Geneve.ListenPort && !e.Bad("--listen-port") && !e.Bad("--geneve-port") {
		e.Add("--geneve-port", "%d is --listen-port too, and both are UDP; choose another port", c.Geneve.ListenPort)
	}
	g.election = k.shared.election(e, c, electionTimes{lease: 5 * time.Second, deadline: 3 * time.Second,
		retry: time.Second})
	c.Metrics = listenAddress(e, "--metrics-address", get("metrics-address"))
	c.Health = listenAddress(e, "--health-probe-bind-address", get("health-probe-bind-address"))
	if c.Health == c.Metrics {
		c.Health = ""
	}
	return g, e.Err()
}
