package config

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"

	"culvert/gateway/configfile"
	"culvert/gateway/wgkey"
	"culvert/geneve"
	"culvert/nat"
	"culvert/nat/rules"
)

// auto stands for a value that ipam chooses, which is invalid in a Config, and for the default path
// of the control socket.
const auto = "auto"

type (
	scalar = configfile.Scalar
	list   = configfile.List

	// file mirrors the YAML configuration file. Leaves are parsed later, so that one run finds all
	// errors.
	file struct {
		Cluster   scalar        `json:"cluster"`
		Peer      scalar        `json:"peer"`
		MTU       scalar        `json:"mtu"`
		WireGuard fileWireGuard `json:"wireguard"`
		Geneve    fileGeneve    `json:"geneve"`
		Network   fileNetwork   `json:"network"`
		NAT       fileNAT       `json:"nat"`
		Rules     []fileRule    `json:"rules"`
		MSSClamp  scalar        `json:"mssClamp"`
		Control   *scalar       `json:"control"`
		Metrics   *scalar       `json:"metrics"`
		Log       fileLog       `json:"log"`
		CPUs      scalar        `json:"cpus"`
		IPAM      fileIPAM      `json:"ipam"`
		State     *scalar       `json:"state"`

		ConnectionCheck scalar `json:"connectionCheck"`
	}
	fileWireGuard struct {
		Role              scalar `json:"role"`
		PrivateKeyFile    scalar `json:"privateKeyFile"`
		PeerPublicKey     scalar `json:"peerPublicKey"`
		PeerPublicKeyFile scalar `json:"peerPublicKeyFile"`
		PresharedKeyFile  scalar `json:"presharedKeyFile"`
		ListenPort        scalar `json:"listenPort"`
		Endpoint          scalar `json:"endpoint"`
		Keepalive         scalar `json:"keepalive"`
		UAPI              scalar `json:"uapi"`
	}
	fileGeneve struct {
		ListenPort     scalar     `json:"listenPort"`
		GatewayAddress list       `json:"gatewayAddress"`
		SourceCheck    scalar     `json:"sourceCheck"`
		Nodes          []fileNode `json:"nodes"`
	}
	fileNode struct {
		Name     scalar   `json:"name"`
		VNI      scalar   `json:"vni"`
		Underlay scalar   `json:"underlay"`
		Address  list     `json:"address"`
		PodCIDRs []scalar `json:"podCIDRs"`
		Encap    scalar   `json:"encap"`
		Inner    scalar   `json:"inner"`
	}
	fileNetwork struct {
		Local struct {
			PodCIDRs      []scalar `json:"podCIDRs"`
			ExternalCIDRs []scalar `json:"externalCIDRs"`
		} `json:"local"`
		Remote struct {
			PodCIDRs      []fileRemap `json:"podCIDRs"`
			ExternalCIDRs []fileRemap `json:"externalCIDRs"`
		} `json:"remote"`
	}
	fileRemap struct {
		CIDR  scalar `json:"cidr"`
		Remap scalar `json:"remap"`
	}
	fileIPAM struct {
		Pools    []scalar `json:"pools"`
		Reserved []scalar `json:"reserved"`
		File     *scalar  `json:"file"`
	}
	fileLog struct {
		Level  scalar `json:"level"`
		Format scalar `json:"format"`
	}
)

// Load reads, checks and returns the configuration in the YAML file at path. Key files named in it
// are relative to the file's folder. The error joins all faults, one line each.
func Load(path string) (*Config, error) {
	text, err := configfile.Read(path, configfile.MaxSize)
	if err != nil {
		return nil, fmt.Errorf("--config: %s: %w", path, err)
	}
	c, err := parse(&configfile.Errors{File: path, Fields: fields}, text, filepath.Dir(path))
	if err != nil {
		return nil, err
	}
	if c.File.Path, err = filepath.Abs(path); err == nil {
		c.File.Sum = sha256.Sum256(text)
	}
	return c, nil
}

func parse(e *configfile.Errors, text []byte, dir string) (*Config, error) {
	var f file
	if !e.Decode(text, &f) {
		return nil, e.Err()
	}
	c := f.config(e, dir)
	c.complete(e)
	c.validate(e)
	if err := e.Err(); err != nil {
		return nil, err
	}
	c.warn(e)
	f.WireGuard.warn(e, dir)
	c.Warnings = e.Warnings()
	return c, nil
}

// config converts every field; validate finds contradictions.
func (f *file) config(e *configfile.Errors, dir string) *Config {
	c := &Config{
		Cluster: string(f.Cluster),
		Peer:    string(f.Peer),
		MTU:     TunnelMTU(e.Int("mtu", f.MTU, int(DefaultMTU), int(minMTU), int(maxMTU))),
		CPUs:    e.CPUs(f.CPUs),
		Control: ControlAuto,
		Metrics: DefaultMetrics,
		Log: Log{
			Level:  e.OneOf("log.level", f.Log.Level, "info", "error", "warning", "debug", "trace"),
			Format: e.OneOf("log.format", f.Log.Format, "text", "json"),
		},
	}
	if f.Control != nil && *f.Control != auto {
		c.Control = ""
		if *f.Control != "" {
			c.Control = pathOf(e, "control", dir, *f.Control)
		}
	}
	if f.Metrics != nil {
		c.Metrics = string(*f.Metrics)
	}
	if e.Bool("connectionCheck", f.ConnectionCheck, false) {
		c.ConnectionCheck = LiqoConnectionCheck
	}
	f.WireGuard.config(e, dir, &c.WireGuard)
	f.Geneve.config(e, &c.Geneve)

	f.networks(e, dir, c)

	switch u := f.NAT.UnknownSource; {
	case u.Is("off"), u.Is(yamlOff):
	case len(u) == 0, u.Is(""), u.Is(auto):
		c.UnknownSource = firstAddresses(c.Local.ExternalCIDRs)
	default:
		c.UnknownSource = pair(e, "nat.unknownSource", u)
	}
	f.NAT.config(e, c)
	for i := range f.Rules {
		c.Rules = append(c.Rules, f.Rules[i].rule(e, fmt.Sprintf("rules[%d]", i)))
	}
	switch f.MSSClamp {
	case "", "auto":
	case "off", yamlOff:
		c.MSSClamp = rules.MSSOff
	default:
		c.MSSClamp = rules.MSSClamp(e.Int("mssClamp", f.MSSClamp, 0, minMSS, int(maxMTU)-40))
	}
	return c
}

// firstAddresses returns the first address of the first CIDR of each family: for IPv6 it is the
// subnet-router anycast address (RFC 4291, Section 2.6.1), which no host has either.
func firstAddresses(cidrs []netip.Prefix) (first rules.Pair) {
	for _, p := range slices.Backward(cidrs) {
		if p.Addr().Is4() {
			first.V4 = p.Addr()
		} else {
			first.V6 = p.Addr()
		}
	}
	return first
}

func pair(e *configfile.Errors, path string, l list) (p rules.Pair) {
	p.V4, p.V6 = e.Pair(path, l)
	return p
}

// yamlOff is how an unquoted off is parsed, a boolean in YAML 1.1.
const yamlOff = "false"

// networks converts the parts about addresses in use and addresses to choose.
func (f *file) networks(e *configfile.Errors, dir string, c *Config) {
	c.Local.PodCIDRs = e.Prefixes("network.local.podCIDRs", f.Network.Local.PodCIDRs)
	c.Local.ExternalCIDRs = e.Prefixes("network.local.externalCIDRs", f.Network.Local.ExternalCIDRs)
	c.Remote = append(c.Remote, remaps(e, "network.remote.podCIDRs", f.Network.Remote.PodCIDRs, false)...)
	c.Remote = append(c.Remote, remaps(e, "network.remote.externalCIDRs", f.Network.Remote.ExternalCIDRs, true)...)
	c.IPAM.Pools = e.Prefixes("ipam.pools", f.IPAM.Pools)
	c.IPAM.Reserved = e.Prefixes("ipam.reserved", f.IPAM.Reserved)
	if f.State != nil {
		if c.State = pathOf(e, "state", dir, *f.State); c.State != "" {
			c.IPAM.File = filepath.Join(c.State, "ipam.json")
		}
	}
	if f.IPAM.File != nil {
		c.IPAM.File = pathOf(e, "ipam.file", dir, *f.IPAM.File)
	}
}

// pathOf reads the path of a file or folder, relative to dir unless it is absolute.
func pathOf(e *configfile.Errors, path, dir string, s scalar) string {
	name := e.Text(path, s)
	if strings.ContainsFunc(name, func(r rune) bool { return !unicode.IsPrint(r) }) {
		e.Add(path, "%q has characters that cannot be printed", name)
	}
	if name == "" || e.Bad(path) || filepath.IsAbs(name) {
		return name
	}
	return filepath.Join(dir, name)
}

// LoadNetworks reads only the parts of the configuration file at path about addresses in use and
// addresses to choose: enough to plan a peering before keys exist.
func LoadNetworks(path string) (*Config, error) {
	text, err := configfile.Read(path, configfile.MaxSize)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	var f file
	e := &configfile.Errors{File: path, Fields: fields}
	if !e.Decode(text, &f) {
		return nil, e.Err()
	}
	c := &Config{Cluster: string(f.Cluster), Peer: string(f.Peer)}
	e.Name("cluster", c.Cluster, configfile.MaxLabel)
	f.networks(e, filepath.Dir(path), c)
	f.Geneve.config(e, &c.Geneve)
	return c, e.Err()
}

func (f *fileWireGuard) config(e *configfile.Errors, dir string, c *WireGuard) {
	if e.Text("wireguard.role", f.Role) != "" && e.OneOf("wireguard.role", f.Role, "client", "server") == "server" {
		c.Role = Server
	}
	port, keepalive := 0, 25*time.Second
	if c.Role == Server {
		port, keepalive = DefaultWireGuardPort, 0
	}
	c.ListenPort = uint16(e.Int("wireguard.listenPort", f.ListenPort, port, 0, 65535))
	c.Keepalive = e.Duration("wireguard.keepalive", f.Keepalive, keepalive, maxKeepalive)
	c.UAPI = e.Bool("wireguard.uapi", f.UAPI, false)

	if e.Text("wireguard.privateKeyFile", f.PrivateKeyFile) != "" {
		c.PrivateKey = readKey(e, "wireguard.privateKeyFile", dir, f.PrivateKeyFile, keygen)
	}
	if f.PresharedKeyFile != "" {
		c.PresharedKey = readKey(e, "wireguard.presharedKeyFile", dir, f.PresharedKeyFile, genpsk)
	}
	switch {
	case f.PeerPublicKey != "" && f.PeerPublicKeyFile != "":
		e.Add("wireguard.peerPublicKeyFile", "wireguard.peerPublicKey is set too; keep one of them")
	case f.PeerPublicKeyFile != "":
		c.PeerPublicKey = readKey(e, "wireguard.peerPublicKeyFile", dir, f.PeerPublicKeyFile, keygen)
	case e.Text("wireguard.peerPublicKey", f.PeerPublicKey) != "":
		key, err := wgkey.Parse(string(f.PeerPublicKey))
		if err != nil {
			e.Add("wireguard.peerPublicKey", "%v", err)
		}
		c.PeerPublicKey = key
	}

	switch {
	case c.Role == Server && f.Endpoint != "":
		e.Add("wireguard.endpoint", "a server learns its peer's endpoint; leave the field out")
	case c.Role == Client && e.Text("wireguard.endpoint", f.Endpoint) != "":
		c.Endpoint = hostPort(e, "wireguard.endpoint", f.Endpoint)
	}
}

// maxKeyFile is more than a key needs in any format, in bytes.
const maxKeyFile = 4096

// keyPath returns the path of a key. A name without a folder is that of a credential that the
// service manager has given this process (systemd.exec(5), LoadCredential). Any other relative
// path, and a name without a credential, begins at dir, the configuration's folder.
func keyPath(dir, name string) string {
	if filepath.IsAbs(name) {
		return name
	}
	if given := os.Getenv("CREDENTIALS_DIRECTORY"); given != "" && filepath.Base(name) == name {
		if p := filepath.Join(given, name); exists(p) {
			return p
		}
	}
	return filepath.Join(dir, name)
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// Who makes keys.
const (
	keygen = "make a key with culvert keygen"
	genpsk = "make a key with wg genpsk, one for both gateways"
)

// readKey reads a key from a file; missing is the remedy if there is none.
func readKey(e *configfile.Errors, path, dir string, name scalar, missing string) wgkey.Key {
	if _, err := wgkey.Parse(string(name)); err == nil {
		e.Add(path, "this is a key; write it into a file of mode 0600, and the name of that file here")
		return wgkey.Key{}
	}
	p := keyPath(dir, string(name))
	text, err := configfile.Read(p, maxKeyFile)
	if err != nil {
		remedy := "name a file with a key, which this process can read"
		if errors.Is(err, fs.ErrNotExist) {
			remedy = missing
		}
		e.Add(path, "%q: %v; %s", p, err, remedy)
		return wgkey.Key{}
	}
	key, err := wgkey.ParseStored(text)
	if err != nil {
		e.Add(path, "%q: %v", p, err)
	}
	return key
}

func hostPort(e *configfile.Errors, path string, s scalar) string {
	host, port, err := net.SplitHostPort(string(s))
	if err != nil || host == "" {
		e.NotHostPort(path, string(s), "192.0.2.7:51840")
		return ""
	}
	isHost := configfile.IsHostName(host)
	if a, err := netip.ParseAddr(host); err == nil {
		if noHost(a.Unmap()) {
			e.Add(path, "%s is not the address of a host; give the peer's", a)
		}
		isHost = a.Zone() == "" || configfile.IsHostName(a.Zone())
		if a.Is6() && a.IsLinkLocalUnicast() && a.Zone() == "" {
			e.Add(path, "%s is link-local; add the interface that leads to it, such as [%s%%eth0]:%s", a, a, port)
		}
		if a.Is4In6() {
			e.Add(path, "%s is IPv4 mapped into IPv6; write %s", a.WithZone(""), a.Unmap().WithZone(""))
		}
	}
	if !isHost {
		e.Add(path, "%q is neither an address nor a host name", host)
	}
	if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 {
		e.Add(path, "%q is not a port from 1 to 65535", port)
	}
	return string(s)
}

func (f *fileGeneve) config(e *configfile.Errors, c *Geneve) {
	c.ListenPort = uint16(e.Int("geneve.listenPort", f.ListenPort, DefaultGenevePort, 1, 65535))
	c.GatewayAddress = pair(e, "geneve.gatewayAddress", f.GatewayAddress)
	if e.OneOf("geneve.sourceCheck", f.SourceCheck, "node", "cluster") == "cluster" {
		c.SourceCheck = nat.SourceCheckCluster
	}
	if tooMany(e, "geneve.nodes", len(f.Nodes), maxNodes) {
		return
	}
	for i, n := range f.Nodes {
		at := fmt.Sprintf("geneve.nodes[%d].", i)
		node := Node{
			Name:     string(n.Name),
			Underlay: e.Underlay(at+"underlay", n.Underlay),
			Address:  pair(e, at+"address", n.Address),
			PodCIDRs: e.Prefixes(at+"podCIDRs", n.PodCIDRs),
		}
		if e.Text(at+"vni", n.VNI) != "" {
			node.VNI = geneve.VNI(e.Int(at+"vni", n.VNI, 0, 0, 1<<24-1))
		}
		switch e.OneOf(at+"encap", n.Encap, auto, "geneve", "vxlan") {
		case "geneve":
			node.Encap = geneve.Geneve
		case "vxlan":
			node.Encap = geneve.VXLAN
		}
		if e.OneOf(at+"inner", n.Inner, "ethernet", "ip") == "ip" {
			node.Inner = geneve.IP
		}
		c.Nodes = append(c.Nodes, node)
	}
}

func remaps(e *configfile.Errors, path string, list []fileRemap, external bool) []rules.RemoteCIDR {
	var rs []rules.RemoteCIDR
	for i, f := range list {
		at := fmt.Sprintf("%s[%d].", path, i)
		r := rules.RemoteCIDR{Real: e.Prefix(at+"cidr", f.CIDR), External: external}
		switch f.Remap {
		case "":
			r.Remapped = r.Real
		case auto:
		default:
			r.Remapped = e.Prefix(at+"remap", f.Remap)
		}
		rs = append(rs, r)
	}
	return rs
}
