package main

import (
	"net"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"culvert/gateway/config"
	"culvert/gateway/configfile"
	"culvert/gateway/wgkey"
)

// liqoFlags are the flags of culvert gateway --liqo. Those that Liqo's gateways also have keep
// their names and meanings. All are text, so that all faults are reported at once.
type liqoFlags struct {
	on    bool
	text  map[string]*string
	given *pflag.FlagSet
}

// A liqoFlag is one of them.
type liqoFlag struct{ name, def, help string }

var liqoFlagList = []liqoFlag{
	{"name", "", "`NAME` of the gateway: of its GatewayServer or GatewayClient"},
	{"namespace", "", "`NAMESPACE` of the gateway"},
	{"remote-cluster-id", "", "`ID` of the remote cluster"},
	{"gateway-uid", "", "`UID` of the GatewayServer or GatewayClient"},
	{"mode", "", "server or client"},
	{"node-name", "", "`NAME` of the node that the gateway runs on"},
	{"pod-name", "", "`NAME` of the gateway's pod, for Events"},
	{"mtu", strconv.Itoa(int(config.DefaultMTU)), "largest inner packet of both tunnels, in `BYTES`"},
	{"keys-dir", "/etc/wireguard/keys", "`FOLDER` of privateKey, which is 32 bytes"},
	{"listen-port", "", "`PORT` of WireGuard (server: 51840; client: any)"},
	{"listen-ports", "", "`PORTS` of WireGuard, of which the first is used"},
	{"endpoint-address", "", "`ADDRESS` or name of the peer (client)"},
	{"endpoint-port", "", "`PORT` of the peer (client: 51840)"},
	{"endpoint-ports", "", "`PORTS` of the peer, of which the first is used"},
	{"geneve-port", strconv.Itoa(config.DefaultGenevePort), "`PORT` of the tunnels to nodes"},
	{"ping-enabled", "true", "ask the peer whether it is there"},
	{"ping-port", "12345", "`PORT` of the connection check"},
	{"ping-interval", "2s", "`TIME` between two pings"},
	{"ping-loss-threshold", "5", "`NUMBER` of intervals without an answer that are an error"},
	{"ping-update-status-interval", "10s", "`TIME` between two updates of the Connection's latency"},
	{"metrics-address", "0", "listen `ADDRESS` of /metrics, /healthz and /readyz; 0 turns it off"},
	{"health-probe-bind-address", "0", "listen `ADDRESS` of /healthz and /readyz alone; 0 turns it off"},
	{"leader-election", "false", "be one of several replicas, of which one forwards"},
	{"leader-election-lease-duration", "",
		"`TIME` after which a standby takes over from a gateway that does not renew its Lease (15s; with --kube 5s)"},
	{"leader-election-renew-deadline", "",
		"`TIME` after which a gateway says that it cannot renew its Lease (10s; with --kube 3s)"},
	{"leader-election-retry-period", "", "`TIME` between two attempts to have the Lease (2s; with --kube 1s)"},
	{"unknown-source", "auto",
		"source of packets from nodes to which no route leads back: auto gives them Liqo's, keep leaves theirs"},
	{"state", "", "`FOLDER` of what outlives the container, such as connections; empty: nothing does"},
	{"kubeconfig", "", "`FILE` that leads to the API server, outside of a pod"},
}

func addLiqoFlags(set *pflag.FlagSet) *liqoFlags {
	l := &liqoFlags{text: map[string]*string{}, given: set}
	set.BoolVar(&l.on, "liqo", false, "stand in for a gateway of Liqo: the flags below instead of --config")
	for _, f := range liqoFlagList {
		l.text[f.name] = set.String(f.name, f.def, f.help)
	}
	set.Lookup("ping-enabled").NoOptDefVal = "true"
	set.Lookup("leader-election").NoOptDefVal = "true"
	return l
}

// liqoArgs are the parsed form of the flags.
type liqoArgs struct {
	base                            *config.Config
	name, namespace, uid, node, pod string
	keepUnknown, pings              bool
	refresh                         time.Duration
	election                        electionTimes
	kubeconfig                      string
	notes                           []string // differences from what the flags request
}

// read parses the flags, or returns all faults.
func (l *liqoFlags) read() (*liqoArgs, error) {
	e := new(configfile.Errors)
	get := func(name string) string { return *l.text[name] }
	scalar := func(name string) (path string, s configfile.Scalar) { return "--" + name, configfile.Scalar(get(name)) }
	number := func(name string, def, low, high int) int {
		path, s := scalar(name)
		return e.Int(path, s, def, low, high)
	}
	duration := func(name string, least time.Duration) time.Duration {
		path, s := scalar(name)
		d := e.Duration(path, s, least, time.Hour)
		if d < least {
			e.Add(path, "%v is less than %v", d, least)
		}
		return d
	}
	c := &config.Config{
		Peer: get("remote-cluster-id"), State: get("state"), Control: config.ControlAuto, Liqo: true,
		Log: config.Log{Level: "info", Format: "text"},
	}
	out := &liqoArgs{
		base: c, name: get("name"), namespace: get("namespace"), uid: get("gateway-uid"), node: get("node-name"),
		pod:        get("pod-name"),
		kubeconfig: get("kubeconfig"),
	}
	for _, name := range []string{"name", "namespace", "remote-cluster-id"} {
		e.Name("--"+name, get(name), configfile.MaxLabel)
	}
	e.Name("--node-name", out.node, configfile.MaxDomain)
	if out.uid == "" {
		e.Missing("--gateway-uid")
	}
	c.MTU = config.TunnelMTU(number("mtu", 0, 576, 9000))
	c.Geneve.ListenPort = uint16(number("geneve-port", 0, 1, 65535))

	server := false
	switch get("mode") {
	case "server":
		server, c.WireGuard.Role = true, config.Server
	case "client":
		// Liqo's client pings instead; without keepalives, NAT devices on the path forget the
		// mapping
		c.WireGuard.Keepalive = 25 * time.Second
	case "":
		e.Add("--mode", "missing; want server or client")
	default:
		e.Add("--mode", "%q is neither server nor client", get("mode"))
	}
	listen := 0
	if server {
		listen = config.DefaultWireGuardPort
	}
	c.WireGuard.ListenPort = uint16(out.port(e, l, "listen-port", "listen-ports", listen))
	if c.WireGuard.ListenPort == c.Geneve.ListenPort && !e.Bad("--listen-port") && !e.Bad("--geneve-port") {
		e.Add("--geneve-port", "%d is --listen-port too, and both are UDP; choose another port", c.Geneve.ListenPort)
	}
	endpoint := out.port(e, l, "endpoint-port", "endpoint-ports", config.DefaultWireGuardPort)
	switch address := get("endpoint-address"); {
	case server && address != "":
		e.Add("--endpoint-address", "is for --mode=client; a server learns where its peer is")
	case !server && address == "" && get("mode") == "client":
		e.Add("--endpoint-address", "missing; want an address or a host name of the peer")
	case !server && address != "":
		c.WireGuard.Endpoint = net.JoinHostPort(address, strconv.Itoa(endpoint))
		if net.ParseIP(address) == nil && !configfile.IsHostName(address) {
			e.Add("--endpoint-address", "%q is neither an address nor a host name", address)
		}
	}
	path, s := scalar("ping-enabled")
	if out.pings = e.Bool(path, s, true); out.pings {
		c.ConnectionCheck = config.ConnectionCheck{
			Port: uint16(number("ping-port", 0, 1, 65535)), Interval: duration("ping-interval", 10*time.Millisecond),
			Threshold: number("ping-loss-threshold", 0, 1, 1000),
		}
	}
	out.election = l.election(e, c, electionTimes{lease: 15 * time.Second, deadline: 10 * time.Second,
		retry: 2 * time.Second})
	if c.Elected {
		e.Name("--pod-name", out.pod, configfile.MaxDomain) // it is the identity
	}
	out.refresh = duration("ping-update-status-interval", time.Second)
	c.Metrics, c.Health = listenAddress(e, "--metrics-address", get("metrics-address")),
		listenAddress(e, "--health-probe-bind-address", get("health-probe-bind-address"))
	if c.Health == c.Metrics {
		c.Health = ""
	}
	switch get("unknown-source") {
	case "auto":
	case "keep":
		out.keepUnknown = true
	case "off":
		e.Add("--unknown-source", "off drops such packets where a file says so; want auto or keep")
	default:
		e.Add("--unknown-source", "%q is neither auto nor keep", get("unknown-source"))
	}
	file := filepath.Join(get("keys-dir"), "privateKey")
	switch b, err := configfile.Read(file, 1024); {
	case err != nil:
		e.Add("--keys-dir", "%s: %v; mount the Secret gw-%s there", file, err, out.name)
	default:
		if c.WireGuard.PrivateKey, err = wgkey.ParseStored(b); err != nil {
			e.Add("--keys-dir", "%s: %v", file, err)
		}
	}
	return out, e.Err()
}

func (out *liqoArgs) server() bool { return out.base.WireGuard.Role == config.Server }

// port parses a port, or the first of a list.
func (out *liqoArgs) port(e *configfile.Errors, l *liqoFlags, one, many string, def int) int {
	text, list := *l.text[one], *l.text[many]
	if text != "" && list != "" {
		e.Add("--"+many, "not together with --%s; give only one of them", one)
		return def
	}
	path := "--" + one
	if list != "" {
		var rest string
		path = "--" + many
		if text, rest, _ = strings.Cut(list, ","); rest != "" {
			out.notes = append(out.notes, path+": of "+list+", "+text+" alone is used")
		}
	}
	return e.Int(path, configfile.Scalar(text), def, 1, 65535)
}

// listenAddress parses an address in Liqo's format.
func listenAddress(e *configfile.Errors, path, address string) string {
	if address == "0" || address == "" {
		return ""
	}
	_, port, err := net.SplitHostPort(address)
	if err == nil {
		_, err = strconv.ParseUint(port, 10, 16)
	}
	if err != nil {
		e.Add(path, "%q is neither host:port nor 0", address)
	}
	return address
}

// strange returns the given flags that do not apply if the gateway runs in this way.
func (l *liqoFlags) strange() (all []string) {
	l.given.Visit(func(f *pflag.Flag) {
		if _, ours := l.text[f.Name]; ours != l.on && f.Name != "liqo" && (ours || f.Name == "config" ||
			f.Name == "takeover" || f.Name == "check" || f.Name == "output") {
			all = append(all, f.Name)
		}
	})
	return all
}
