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
	r := &liqoFlagReader{liqoFlags: l}
	c := &config.Config{
		Peer: r.get("remote-cluster-id"), State: r.get("state"), Control: config.ControlAuto, Liqo: true,
		Log: config.Log{Level: "info", Format: "text"},
	}
	r.out = &liqoArgs{
		base: c, name: r.get("name"), namespace: r.get("namespace"), uid: r.get("gateway-uid"),
		node: r.get("node-name"), pod: r.get("pod-name"), kubeconfig: r.get("kubeconfig"),
	}
	r.identity()
	c.MTU = config.TunnelMTU(r.number("mtu", 0, 576, 9000))
	c.Geneve.ListenPort = uint16(r.number("geneve-port", 0, 1, 65535))
	r.mode()
	r.listens()
	r.endpoint()
	r.connectionCheck()
	r.out.election = l.election(&r.Errors, c, electionTimes{lease: 15 * time.Second, deadline: 10 * time.Second,
		retry: 2 * time.Second})
	if c.Elected {
		r.Name("--pod-name", r.out.pod, configfile.MaxDomain) // it is the identity
	}
	r.out.refresh = r.duration("ping-update-status-interval", time.Second)
	c.Metrics, c.Health = listenAddress(&r.Errors, "--metrics-address", r.get("metrics-address")),
		listenAddress(&r.Errors, "--health-probe-bind-address", r.get("health-probe-bind-address"))
	if c.Health == c.Metrics {
		c.Health = ""
	}
	r.unknownSource()
	r.privateKey()
	return r.out, r.Err()
}

func (out *liqoArgs) server() bool { return out.base.WireGuard.Role == config.Server }

// A liqoFlagReader collects in out what the flags say, and their faults.
type liqoFlagReader struct {
	*liqoFlags
	configfile.Errors
	out *liqoArgs
}

func (r *liqoFlagReader) get(name string) string { return *r.text[name] }

func (r *liqoFlagReader) scalar(name string) (path string, s configfile.Scalar) {
	return "--" + name, configfile.Scalar(r.get(name))
}

func (r *liqoFlagReader) number(name string, def, low, high int) int {
	path, s := r.scalar(name)
	return r.Int(path, s, def, low, high)
}

func (r *liqoFlagReader) duration(name string, least time.Duration) time.Duration {
	path, s := r.scalar(name)
	d := r.Duration(path, s, least, time.Hour)
	if d < least {
		r.Add(path, "%v is less than %v", d, least)
	}
	return d
}

func (r *liqoFlagReader) identity() {
	for _, name := range []string{"name", "namespace", "remote-cluster-id"} {
		r.Name("--"+name, r.get(name), configfile.MaxLabel)
	}
	r.Name("--node-name", r.out.node, configfile.MaxDomain)
	if r.out.uid == "" {
		r.Missing("--gateway-uid")
	}
}

func (r *liqoFlagReader) mode() {
	switch w := &r.out.base.WireGuard; r.get("mode") {
	case "server":
		w.Role = config.Server
	case "client":
		// Liqo's client pings instead; without keepalives, NAT devices on the path forget the
		// mapping
		w.Keepalive = 25 * time.Second
	case "":
		r.Add("--mode", "missing; want server or client")
	default:
		r.Add("--mode", "%q is neither server nor client", r.get("mode"))
	}
}

// listens reads the port of WireGuard, after the role.
func (r *liqoFlagReader) listens() {
	def := 0
	if r.out.server() {
		def = config.DefaultWireGuardPort
	}
	c := r.out.base
	c.WireGuard.ListenPort = uint16(r.port("listen-port", "listen-ports", def))
	if c.WireGuard.ListenPort == c.Geneve.ListenPort && !r.Bad("--listen-port") && !r.Bad("--geneve-port") {
		r.Add("--geneve-port", "%d is --listen-port too, and both are UDP; choose another port", c.Geneve.ListenPort)
	}
}

func (r *liqoFlagReader) endpoint() {
	port := r.port("endpoint-port", "endpoint-ports", config.DefaultWireGuardPort)
	switch address := r.get("endpoint-address"); {
	case r.out.server() && address != "":
		r.Add("--endpoint-address", "is for --mode=client; a server learns where its peer is")
	case address == "" && r.get("mode") == "client":
		r.Add("--endpoint-address", "missing; want an address or a host name of the peer")
	case address != "":
		r.out.base.WireGuard.Endpoint = net.JoinHostPort(address, strconv.Itoa(port))
		if net.ParseIP(address) == nil && !configfile.IsHostName(address) {
			r.Add("--endpoint-address", "%q is neither an address nor a host name", address)
		}
	}
}

func (r *liqoFlagReader) connectionCheck() {
	path, s := r.scalar("ping-enabled")
	if r.out.pings = r.Bool(path, s, true); r.out.pings {
		r.out.base.ConnectionCheck = config.ConnectionCheck{
			Port:      uint16(r.number("ping-port", 0, 1, 65535)),
			Interval:  r.duration("ping-interval", 10*time.Millisecond),
			Threshold: r.number("ping-loss-threshold", 0, 1, 1000),
		}
	}
}

func (r *liqoFlagReader) unknownSource() {
	switch of := r.get("unknown-source"); of {
	case "auto":
	case "keep":
		r.out.keepUnknown = true
	case "off":
		r.Add("--unknown-source", "off drops such packets where a file says so; want auto or keep")
	default:
		r.Add("--unknown-source", "%q is neither auto nor keep", of)
	}
}

func (r *liqoFlagReader) privateKey() {
	file := filepath.Join(r.get("keys-dir"), "privateKey")
	b, err := configfile.Read(file, 1024)
	if err != nil {
		r.Add("--keys-dir", "%s: %v; mount the Secret gw-%s there", file, err, r.out.name)
	} else if r.out.base.WireGuard.PrivateKey, err = wgkey.ParseStored(b); err != nil {
		r.Add("--keys-dir", "%s: %v", file, err)
	}
}

// port parses a port, or the first of a list.
func (r *liqoFlagReader) port(one, many string, def int) int {
	text, list := r.get(one), r.get(many)
	if text != "" && list != "" {
		r.Add("--"+many, "not together with --%s; give only one of them", one)
		return def
	}
	path := "--" + one
	if list != "" {
		var rest string
		path = "--" + many
		if text, rest, _ = strings.Cut(list, ","); rest != "" {
			r.out.notes = append(r.out.notes, path+": of "+list+", "+text+" alone is used")
		}
	}
	return r.Int(path, configfile.Scalar(text), def, 1, 65535)
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
