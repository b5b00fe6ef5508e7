package lab

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"culvert/integration/lab/plan"
	"culvert/integration/lab/probe"
	"culvert/integration/lab/step"
)

// A refusal is a file that a running gateway must refuse: a valid file with a change, or a text
// derived from one.
type refusal struct {
	want   string // in the log
	change func(config Object)
	text   func(good string) string
}

const refusedPort = 22 // what refuseChecks' rule rejects

// refusals returns a file for each kind of fault in the configuration of the gateway of
// clusters[i].
func (l *Lab) refusals(i int) []refusal {
	c := &plan.V4[i]
	node := func(more Object) func(Object) {
		return func(config Object) {
			o := Object{"name": "third", "vni": 77, "underlay": "172.18.0.77", "address": "10.80.0.77",
				"podCIDRs": []string{"10.0.77.0/24"}}
			maps.Copy(o, more)
			Set(config, "geneve.nodes", append(NodesOf(config), o))
		}
	}
	at := func(path string, value any) func(Object) { return func(config Object) { Set(config, path, value) } }
	mapping := func(external, internal, via string) []Object {
		return []Object{{"external": "10.70.9.1", "internal": "203.0.113.1"},
			{"external": external, "internal": internal, "via": via}}
	}
	rules := func(more ...Object) []Object { return append([]Object{{"name": "one", "action": "accept"}}, more...) }
	remote := func(cidr, remap string) Object {
		return Object{"podCIDRs": []Object{{"cidr": cidr, "remap": remap}}}
	}
	first := c.Nodes[0]
	wrongRole := map[string]string{"client": "server", "server": "client"}[c.Role]
	var key string // the file of another key; a write error shows as a wrong refusal
	if err := l.Write(c.Name, "other.key", []byte("QEFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUE=\n")); err == nil {
		key = l.Path(c.Name, "other.key")
		if l.Options.Sandbox.Runsc != "" { // the gateway there has another user
			os.Chown(key, sandboxUser, sandboxUser)
		}
	}
	return []refusal{
		{want: "colour: no such field", change: at("colour", "red")},
		{want: "geneve.nodes: want a list", change: at("geneve.nodes", 3)},
		{want: "cluster: cannot change", change: at("cluster", "paris")},
		{want: "cluster: \\\"/../../x\\\" is no name", change: at("cluster", "/../../x")},
		{want: "peer: ", change: at("peer", c.Name)},
		{want: "peer: \\\"a\\\\nlevel=error\\\" is no name", change: at("peer", "a\nlevel=error")},
		{want: "mtu: cannot change", change: at("mtu", probe.SmallMTU)},
		{want: "mtu: ", change: at("mtu", 90000)},
		{want: "state: cannot change", change: at("state", l.Path(c.Name, "elsewhere"))},
		{want: "metrics: cannot change", change: at("metrics", "127.0.0.1:9999")},
		{want: "metrics: ", change: at("metrics", "127.0.0.1:99999")},
		{want: "log.format: cannot change", change: at("log", Object{"format": "json"})},
		{want: "log.level: ", change: at("log", Object{"level": "loud"})},
		{want: "mssClamp: ", change: at("mssClamp", 3)},
		{want: "wireguard.", change: at("wireguard.role", wrongRole)},
		{want: "wireguard.listenPort: cannot change", change: at("wireguard.listenPort", 51999)},
		{want: "wireguard.uapi: cannot change", change: at("wireguard.uapi", true)},
		{want: "wireguard.keepalive: ", change: at("wireguard.keepalive", "-1s")},
		{want: "wireguard.endpoint: ", change: at("wireguard.endpoint", "nowhere")},
		{want: "wireguard.privateKeyFile: ", change: at("wireguard.privateKeyFile", l.Path(c.Name, "none.key"))},
		{want: "wireguard.privateKeyFile: ", change: at("wireguard.privateKeyFile", l.Path(c.Name, "gateway.yaml"))},
		{want: "wireguard.privateKeyFile: cannot change", change: at("wireguard.privateKeyFile", key)},
		{want: "wireguard.peerPublicKey: not a WireGuard key", change: at("wireguard.peerPublicKey", "short")},
		{want: "wireguard.peerPublicKey: this is this gateway", change: at("wireguard.peerPublicKey", l.PublicKey[i])},
		{want: "geneve.listenPort: cannot change", change: at("geneve.listenPort", 6092)},
		{want: "geneve.gatewayAddress: routers do not forward packets to 0.0.0.0",
			change: at("geneve.gatewayAddress", "0.0.0.0")},
		{want: "geneve.sourceCheck: ", change: at("geneve.sourceCheck", "pod")},
		{want: "geneve.nodes: missing", change: at("geneve.nodes", []Object{})},
		{want: "geneve.nodes[1].inner: VXLAN", change: node(Object{"encap": "vxlan", "inner": "ip"})},
		{want: "geneve.nodes[1].vni: ", change: node(Object{"vni": 1 << 24})},
		{want: "geneve.nodes[1].vni: ", change: node(Object{"vni": first.VNI})},
		{want: "geneve.nodes[1].name: ", change: node(Object{"name": c.Name + "-" + first.Name})},
		{want: "geneve.nodes[1].name: ", change: node(Object{"name": "liqo-tunnel"})},
		{want: "geneve.nodes[1].address: ", change: node(Object{"address": first.Internal})},
		{want: "geneve.nodes[1].address: ", change: node(Object{"address": "10.0.77.1"})},
		{want: "geneve.nodes[1].underlay: ", change: node(Object{"underlay": "224.0.0.1"})},
		{want: "geneve.nodes[1].podCIDRs[0]: ", change: node(Object{"podCIDRs": []string{"10.99.0.0/24"}})},
		{want: "geneve.nodes[1].podCIDRs[0]: ",
			change: node(Object{"podCIDRs": []netip.Prefix{first.PodCIDR.Masked()}})},
		{want: "network.local.podCIDRs: missing", change: at("network.local", Object{})},
		{want: "network.remote.podCIDRs: missing", change: at("network.remote", Object{})},
		{want: "network.remote.podCIDRs[0].remap: ", change: at("network.remote",
			remote("10.0.0.0/16", "10.61.0.0/17"))},
		{want: "network.remote.podCIDRs[0].remap: ", change: at("network.remote",
			remote("10.0.0.0/16", "10.70.0.0/16"))},
		{want: "nat.unknownSource: ", change: at("nat.unknownSource", "192.0.2.1")},
		{want: "nat.addresses[1].external: ", change: at("nat.addresses", mapping("192.0.2.1", "203.0.113.2", ""))},
		{want: "nat.addresses[1].internal: 203.0.113.1 is nat.addresses[0].internal too", change: at("nat.addresses",
			mapping("10.70.9.2", "203.0.113.1", ""))},
		{want: "nat.addresses[1].internal: routers do not forward packets to 224.0.0.1", change: at("nat.addresses",
			mapping("10.70.9.2", "224.0.0.1", ""))},
		{want: "nat.addresses[1].via: ", change: at("nat.addresses", mapping("10.70.9.2", "203.0.113.2", "paris-1"))},
		{want: "nat.maxConnections: ", change: at("nat.maxConnections", 1<<30)},
		{want: "nat.services[0].backends: missing", change: at("nat.services",
			[]Object{{"name": "web", "address": "10.70.9.3", "port": 80}})},
		{want: "rules[1].name: ", change: at("rules", rules(Object{"name": "one", "action": "drop"}))},
		{want: "rules[1].action: missing", change: at("rules", rules(Object{"name": "two"}))},
		{want: "rules[1].ports: ", change: at("rules", rules(Object{"name": "two", "action": "drop", "ports": "22"}))},
		{want: "rules[1].src[0]: ",
			change: at("rules", rules(Object{"name": "two", "action": "drop", "src": []string{"10.0.0.1/8"}}))},
		{want: "not YAML", text: func(good string) string { return good + "\n\t{" }},
		{want: "more than one YAML document", text: func(good string) string { return good + "---\nmtu: 1\n" }},
		{want: "cluster: missing", text: func(string) string { return "" }},
		{want: "larger than", text: func(good string) string { return good + strings.Repeat("#\n", 5<<20) }},
	}
}

// checkRefused sends SIGHUP for one invalid file after the other, each of which also has valid
// changes: no second node, no rules, and another keepalive. None of it may take effect.
func (l *Lab) checkRefused(ctx context.Context) (string, error) {
	files := 0
	for i := range plan.V4 {
		n, err := l.checkRefusedBy(ctx, i)
		if err != nil {
			return "", fmt.Errorf("%s: %w", plan.V4[i].Name, err)
		}
		files += n
	}
	return fmt.Sprintf("%d files refused, nothing changed", files), nil
}

func (l *Lab) checkRefusedBy(ctx context.Context, i int) (_ int, err error) {
	defer step.Catch(&err)
	name := plan.V4[i].Name
	good := func(config Object) {
		config["rules"] = []Object{{"name": "no-ssh", "from": "remote", "protocol": "tcp",
			"ports": fmt.Sprint(refusedPort), "action": "reject"}}
	}
	step.Try(l.Reload(ctx, i, good))
	var calls []*probe.Call
	var ends []*probe.Ends
	for _, pod := range []string{"/pod1", "/pod2"} {
		e := l.Pair(plan.V4[1-i].Name+pod, name+pod)
		defer step.Must(probe.NewNameServer(e.To, BackendPort)).Close()
		c := step.Must(probe.NewCall(ctx, e.From, netip.AddrPortFrom(e.Target, BackendPort)))
		calls, ends = append(calls, c), append(ends, e)
	}
	text := step.Must(os.ReadFile(l.Path(name, "gateway.yaml")))
	files := 0
	for k, r := range l.refusals(i) {
		if os.Getenv("CULVERT_LONG") == "" && k%2 != i {
			continue // the other gateway refuses it
		}
		files++
		if r.text != nil {
			err = l.Write(name, "gateway.yaml", []byte(r.text(string(text))))
		} else {
			config := l.GatewayConfig(i)
			Set(config, "geneve.nodes", NodesOf(config)[:1])
			Set(config, "wireguard.keepalive", "7s")
			r.change(config)
			err = l.WriteYAML(name, "gateway.yaml", config)
		}
		if err == nil {
			err = l.nothingChanges(ctx, i, r.want)
		}
		for k := range calls {
			if err == nil {
				_, _, err = calls[k].Ask()
			}
			if err == nil {
				// by a rule of the valid file
				err = probe.Refuses(ctx, ends[k].From, netip.AddrPortFrom(ends[k].Target, refusedPort),
					unix.ENETUNREACH)
			}
		}
		if err != nil {
			return 0, fmt.Errorf("refused for %q: %w", r.want, err)
		}
	}
	return files, l.Reload(ctx, i, nil)
}

const (
	// viewPatience limits the search for what changes by itself: gateways ping each other each
	// second while packets pass, ask nodes, and send keepalives.
	viewPatience = 20 * time.Second
	viewPause    = 10 * step.Poll // more than a delayed acknowledgement takes
)

// nothingChanges sends SIGHUP, requires a refusal for the given reason, and compares the gateway's
// configuration, rules, routes, connections, counters and sockets before and after. Only a reload
// changes the first three, so any difference there is an effect of the file. So is a difference
// elsewhere, unless the same changes without SIGHUP, too.
func (l *Lab) nothingChanges(ctx context.Context, i int, want string) (err error) {
	defer step.Catch(&err)
	configured := step.Must(l.configured(ctx, i))
	last, byItself := step.Must(l.view(ctx, i)), make(map[string]bool)
	var changes map[string]string
	for began := time.Now(); time.Since(began) < viewPatience; {
		step.Try(step.Sleep(ctx, viewPause))
		before := step.Must(l.view(ctx, i))
		for what := range last.changes(before) {
			byItself[what] = true
		}
		if line := step.Must(l.SendHangup(ctx, i, RefusedText)); !strings.Contains(line, want) {
			return fmt.Errorf("the log gives another reason: %s", line)
		}
		still := step.Must(l.configured(ctx, i))
		if !slices.Equal(configured, still) {
			return fmt.Errorf("the refused file has changed the configuration: %q, before %q", still, configured)
		}
		last = step.Must(l.view(ctx, i))
		changes = before.changes(last)
		maps.DeleteFunc(changes, func(what, _ string) bool { return byItself[what] })
		if len(changes) == 0 {
			return nil
		}
	}
	return fmt.Errorf("the refused file has changed the gateway: %s",
		strings.Join(slices.Sorted(maps.Values(changes)), "; "))
}
