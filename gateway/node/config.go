package node

import (
	"fmt"
	"net/netip"
	"regexp"

	"golang.org/x/sys/unix"

	"culvert/gateway/configfile"
)

// Mode says which kind of link carries the tunnel.
type Mode string

// The modes of a node; Auto is the first of the others that the kernel has.
const (
	Auto   Mode = "auto"
	Geneve Mode = "geneve"
	VXLAN  Mode = "vxlan"
	TUN    Mode = "tun"
)

// Defaults and limits of the configuration.
const (
	DefaultMTU       = 1340 // bytes, of the inner packet
	DefaultPort      = 6091 // Liqo's Geneve port
	DefaultInterface = "culvert0"

	minMTU = 576   // bytes; every IPv4 host takes this much (RFC 1122, Section 3.3.3)
	maxMTU = 65485 // bytes; 65,535 less 50 of outer headers
	maxVNI = 1<<24 - 1
)

// Config is one node's end of its tunnel to a gateway.
type Config struct {
	Name           string         // of the node, for logs
	Underlay       netip.Addr     // local outer address
	Gateway        string         // outer address or host name of the gateway
	GatewayAddress netip.Addr     // internal address of the gateway
	VNI            uint32         // of (gateway, node)
	Address        netip.Addr     // internal address of this node
	MTU            int            // bytes of the largest inner packet
	Port           uint16         // UDP port of both ends
	Mode           Mode           // kind of link
	Routes         []netip.Prefix // destinations reached through the gateway
	Interface      string         // name of the link

	// Warnings are about what the file may mean but probably does not, one line each.
	Warnings []string
}

// file mirrors the YAML file; every leaf is read later, so that all errors are
// found in one run.
type file struct {
	Name     configfile.Scalar `json:"name"`
	Underlay configfile.Scalar `json:"underlay"`
	Gateway  struct {
		Underlay configfile.Scalar `json:"underlay"`
		Address  configfile.Scalar `json:"address"`
	} `json:"gateway"`
	VNI       configfile.Scalar   `json:"vni"`
	Address   configfile.Scalar   `json:"address"`
	MTU       configfile.Scalar   `json:"mtu"`
	Port      configfile.Scalar   `json:"port"`
	Mode      configfile.Scalar   `json:"mode"`
	Routes    []configfile.Scalar `json:"routes"`
	Interface configfile.Scalar   `json:"interface"`
}

// LoadConfig reads and checks the YAML file at path. The error joins everything
// that is wrong with it, one line each.
func LoadConfig(path string) (*Config, error) {
	text, err := configfile.Read(path, configfile.MaxSize)
	if err != nil {
		return nil, fmt.Errorf("--config: %s: %w", path, err)
	}
	return parse(&configfile.Errors{File: path, Fields: fields}, text)
}

func parse(e *configfile.Errors, text []byte) (*Config, error) {
	var f file
	if !e.Decode(text, &f) {
		return nil, e.Err()
	}
	c := &Config{
		Name:           e.Text("name", f.Name),
		Underlay:       e.Addr("underlay", f.Underlay),
		Gateway:        e.Text("gateway.underlay", f.Gateway.Underlay),
		GatewayAddress: e.Addr("gateway.address", f.Gateway.Address),
		VNI:            vni(e, f.VNI),
		Address:        e.Addr("address", f.Address),
		MTU:            e.Int("mtu", f.MTU, DefaultMTU, minMTU, maxMTU),
		Port:           uint16(e.Int("port", f.Port, DefaultPort, 1, 65535)),
		Mode:           Mode(e.OneOf("mode", f.Mode, string(Auto), string(Geneve), string(VXLAN), string(TUN))),
		Routes:         e.Prefixes("routes", f.Routes),
		Interface:      DefaultInterface,
	}
	if f.Interface != "" {
		c.Interface = string(f.Interface)
	}
	c.validate(e)
	if err := e.Err(); err != nil {
		return nil, err
	}
	c.warn(e)
	c.Warnings = e.Warnings()
	return c, nil
}

// vni requires a VNI; 0 is one, so there is no default.
func vni(e *configfile.Errors, s configfile.Scalar) uint32 {
	if e.Text("vni", s) == "" {
		return 0
	}
	return uint32(e.Int("vni", s, 0, 0, maxVNI))
}

// A name the kernel takes (dev_valid_name) and a shell needs no quotes for.
var interfaceName = regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9_.-]*$`)

// validate notes what contradicts what. Values that could not be read are
// invalid here and were reported before.
func (c *Config) validate(e *configfile.Errors) {
	e.Name("name", c.Name, configfile.MaxDomain)
	if len(c.Interface) >= unix.IFNAMSIZ || !interfaceName.MatchString(c.Interface) {
		e.Add("interface", "%q is no interface name: want 1 to %d letters, digits, dots, dashes and underscores",
			c.Interface, unix.IFNAMSIZ-1)
	}
	if a, err := netip.ParseAddr(c.Gateway); err == nil {
		switch {
		case !a.Is4():
			e.Add("gateway.underlay", "%s: IPv6 is not supported yet", a)
		case !unicast(a):
			e.Add("gateway.underlay", "%s is no host's address", a)
		case a == c.Underlay:
			e.Add("gateway.underlay", "%s is this node's own underlay address", a)
		}
	} else if c.Gateway != "" && !configfile.IsHostName(c.Gateway) {
		e.Add("gateway.underlay", "%q is neither an address nor a host name", c.Gateway)
	}
	for _, field := range []struct {
		path    string
		address netip.Addr
	}{{"underlay", c.Underlay}, {"address", c.Address}, {"gateway.address", c.GatewayAddress}} {
		if field.address.IsValid() && !unicast(field.address) {
			e.Add(field.path, "%s is no host's address", field.address)
		}
	}
	if c.Address.IsValid() && c.Address == c.GatewayAddress {
		e.Add("gateway.address", "%s is this node's own address", c.Address)
	}
	routes := make(map[netip.Prefix]int, len(c.Routes))
	for i, p := range c.Routes {
		path := fmt.Sprintf("routes[%d]", i)
		if j, ok := routes[p]; ok {
			e.Add(path, "%s is routes[%d] again", p, j)
		}
		routes[p] = i
		if p.Contains(c.Underlay) {
			e.Add(path, "%s contains underlay %s: the tunnel would run through itself", p, c.Underlay)
		}
		if g, err := netip.ParseAddr(c.Gateway); err == nil && p.Contains(g) {
			e.Add(path, "%s contains gateway.underlay %s: the tunnel would run through itself", p, g)
		}
	}
}

// unicast reports whether a can be the address of one host.
func unicast(a netip.Addr) bool {
	return !a.IsUnspecified() && !a.IsLoopback() && !a.IsMulticast() && a != netip.AddrFrom4([4]byte{255, 255, 255, 255})
}
