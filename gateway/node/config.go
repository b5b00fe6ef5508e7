package node

import (
	"fmt"
	"net/netip"
	"reflect"
	"regexp"

	"golang.org/x/sys/unix"

	"culvert/gateway/configfile"
	"culvert/gateway/node/services"
	"culvert/geneve"
)

// Mode selects the kind of link for the tunnel.
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
	DefaultPort      = 6091 // as in Liqo
	DefaultInterface = "culvert0"

	minMTU  = 576   // bytes; every IPv4 host accepts this much (RFC 1122, Section 3.3.3)
	minMTU6 = 1280  // bytes; every link of IPv6 carries this much (RFC 8200, Section 5)
	maxMTU  = 65465 // bytes; 65,535 less 70 of outer headers
	maxVNI  = 1<<24 - 1
)

// Config is the configuration of one node's end of its tunnel to a gateway.
type Config struct {
	Name           string         // of the node, for logs
	Underlay       netip.Addr     // local outer address
	Gateway        string         // outer address or host name of the gateway
	GatewayAddress geneve.Pair    // internal addresses of the gateway, of the same families as Address
	VNI            uint32         // of (gateway, node)
	Address        geneve.Pair    // internal addresses of this node
	MTU            int            // bytes of the largest inner packet
	Port           uint16         // UDP port of both ends
	Mode           Mode           // kind of link
	Routes         []netip.Prefix // destinations reached through the gateway
	Interface      string         // name of the link
	KeepLinks      bool           // the link outlives this process, and the next run continues with it

	CPUs int // threads that run Go code at once; 0 = the default

	// Tunnel: there is one. Without it, all but Name, CPUs and Services is empty.
	Tunnel   bool
	Services *services.Config // nil: none are served

	// Warnings name what is valid but probably unintended, one line each.
	Warnings []string
}

// file mirrors the YAML file. Leaves are parsed later, so that one run finds all errors.
type file struct {
	Name     configfile.Scalar `json:"name"`
	Underlay configfile.Scalar `json:"underlay"`
	Gateway  struct {
		Underlay configfile.Scalar `json:"underlay"`
		Address  configfile.List   `json:"address"`
	} `json:"gateway"`
	VNI       configfile.Scalar   `json:"vni"`
	Address   configfile.List     `json:"address"`
	MTU       configfile.Scalar   `json:"mtu"`
	Port      configfile.Scalar   `json:"port"`
	Mode      configfile.Scalar   `json:"mode"`
	Routes    []configfile.Scalar `json:"routes"`
	Interface configfile.Scalar   `json:"interface"`
	KeepLinks configfile.Scalar   `json:"keepLinks"`
	CPUs      configfile.Scalar   `json:"cpus"`
	Services  *services.File      `json:"services"`
}

// tunnel reports whether the file has any tunnel field, or must have because it has no services.
func (f file) tunnel() bool {
	served := f.Services != nil
	f.Name, f.CPUs, f.Services = "", "", nil
	return !served || !reflect.ValueOf(f).IsZero()
}

// LoadConfig reads and checks the YAML file at path. The error joins all faults, one line each.
func LoadConfig(path string) (*Config, error) {
	text, err := configfile.Read(path, configfile.MaxSize)
	if err != nil {
		return nil, fmt.Errorf("--config: %s: %w", path, err)
	}
	return parse(&configfile.Errors{File: path, Fields: fields}, text, "")
}

// LoadUnderKubernetes is LoadConfig for a node whose name and Services come from Kubernetes. The
// file must not contain Services, may omit name and addresses, and an empty path means no file.
func LoadUnderKubernetes(path, name string) (*Config, error) {
	text := []byte("{}")
	if path != "" {
		var err error
		if text, err = configfile.Read(path, configfile.MaxSize); err != nil {
			return nil, fmt.Errorf("--config: %s: %w", path, err)
		}
	}
	return parse(&configfile.Errors{File: path, Fields: fields}, text, name)
}

// parse parses a file; under is the node's name under Kubernetes, "" without.
func parse(e *configfile.Errors, text []byte, under string) (*Config, error) {
	var f file
	if !e.Decode(text, &f) {
		return nil, e.Err()
	}
	if under != "" && f.Name == "" {
		f.Name = configfile.Scalar(under)
	}
	if under != "" && f.Services == nil {
		f.Services = &services.File{}
	}
	c := &Config{Name: e.Text("name", f.Name), CPUs: e.CPUs(f.CPUs), Tunnel: f.tunnel()}
	switch {
	case under != "":
		c.Services = f.Services.Base(e, under)
		if len(f.Services.Serve) > 0 {
			e.Add("services.serve", "Services come from Kubernetes; leave it out, or start without --services")
		}
	case f.Services != nil:
		c.Services = f.Services.Config(e, c.Name)
	}
	if c.Tunnel {
		c.readTunnel(e, &f)
		if s := c.Services; s != nil && s.Mode != services.Sockets && s.Interface == c.Interface {
			e.Add("services.interface", "%s is interface too; choose another name", s.Interface)
		}
	}
	e.Name("name", c.Name, configfile.MaxDomain)
	if err := e.Err(); err != nil {
		return nil, err
	}
	if c.Tunnel {
		c.warn(e)
	}
	c.Warnings = e.Warnings()
	return c, nil
}

// SameTunnel reports whether o equals c except for Services and CPUs.
func (c *Config) SameTunnel(o *Config) bool {
	a, b := *c, *o
	a.Services, b.Services, a.Warnings, b.Warnings, a.CPUs, b.CPUs = nil, nil, nil, nil, 0, 0
	return reflect.DeepEqual(a, b) && (c.Services == nil) == (o.Services == nil)
}

// readTunnel reads the tunnel's fields.
func (c *Config) readTunnel(e *configfile.Errors, f *file) {
	c.Underlay = e.Underlay("underlay", f.Underlay)
	c.Gateway = e.Text("gateway.underlay", f.Gateway.Underlay)
	c.GatewayAddress = pair(e, "gateway.address", f.Gateway.Address)
	c.VNI = vni(e, f.VNI)
	c.Address = pair(e, "address", f.Address)
	c.MTU = e.Int("mtu", f.MTU, DefaultMTU, minMTU, maxMTU)
	c.Port = uint16(e.Int("port", f.Port, DefaultPort, 1, 65535))
	c.Mode = Mode(e.OneOf("mode", f.Mode, string(Auto), string(Geneve), string(VXLAN), string(TUN)))
	c.Routes = e.Prefixes("routes", f.Routes)
	c.Interface = DefaultInterface
	c.KeepLinks = e.Bool("keepLinks", f.KeepLinks, false)
	if f.Interface != "" {
		c.Interface = string(f.Interface)
	}
	c.validate(e)
}

func pair(e *configfile.Errors, path string, l configfile.List) (p geneve.Pair) {
	p.V4, p.V6 = e.Pair(path, l)
	return p
}

// vni reads a VNI. It is required, because 0 is valid and so there is no default.
func vni(e *configfile.Errors, s configfile.Scalar) uint32 {
	if e.Text("vni", s) == "" {
		return 0
	}
	return uint32(e.Int("vni", s, 0, 0, maxVNI))
}

// A name that the kernel accepts (dev_valid_name) and that needs no quotes in a shell.
var interfaceName = regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9_.-]*$`)

// validate reports contradictions. Values that could not be read are invalid here and were reported
// before.
func (c *Config) validate(e *configfile.Errors) {
	if len(c.Interface) >= unix.IFNAMSIZ || !interfaceName.MatchString(c.Interface) {
		e.Add("interface", "%q is no interface name: want 1 to %d letters, digits, dots, dashes and underscores",
			c.Interface, unix.IFNAMSIZ-1)
	}
	if a, err := netip.ParseAddr(c.Gateway); err == nil {
		switch e.Underlay("gateway.underlay", configfile.Scalar(c.Gateway)); {
		case e.Bad("gateway.underlay"):
		case c.Underlay.IsValid() && a.Is4() != c.Underlay.Is4():
			e.Add("gateway.underlay", "%s is %s, and underlay %s is not; write addresses of one family", a,
				family(a), c.Underlay)
		case !unicast(a):
			e.Add("gateway.underlay", "%s is no host's address; write the one by which this node reaches the gateway",
				a)
		case a == c.Underlay:
			e.Add("gateway.underlay", "%s is this node's own underlay address; write the gateway's", a)
		}
	} else if c.Gateway != "" && !configfile.IsHostName(c.Gateway) {
		e.Add("gateway.underlay", "%q is neither an address nor a host name", c.Gateway)
	}
	if c.Underlay.IsValid() && !unicast(c.Underlay) {
		e.Add("underlay", "%s is no host's address; write the one by which the gateway reaches this node", c.Underlay)
	}
	c.validateEnds(e)
	routes := make(map[netip.Prefix]int, len(c.Routes))
	for i, p := range c.Routes {
		path := fmt.Sprintf("routes[%d]", i)
		if j, ok := routes[p]; ok {
			e.Add(path, "%s is routes[%d] again; leave one out", p, j)
		}
		routes[p] = i
		if c.Address != (geneve.Pair{}) && !of(c.Address, p.Addr()).IsValid() {
			e.Add(path,
				"%s is %s, and address is not; write a list of one address of each family at address and gateway.address, or leave the route out", p, family(p.Addr()))
		}
		if p.Contains(c.Underlay) {
			e.Add(path, "%s contains underlay %s: the tunnel would run through itself; write a CIDR without it",
				p, c.Underlay)
		}
		if g, err := netip.ParseAddr(c.Gateway); err == nil && p.Contains(g) {
			e.Add(path, "%s contains gateway.underlay %s: the tunnel would run through itself; write a CIDR without it",
				p, g)
		}
	}
}

// validateEnds checks the addresses of both ends of the tunnel.
func (c *Config) validateEnds(e *configfile.Errors) {
	none := geneve.Pair{}
	own, gateway := c.Address, c.GatewayAddress
	for _, both := range [][2]netip.Addr{{own.V4, gateway.V4}, {own.V6, gateway.V6}} {
		for i, path := range []string{"address", "gateway.address"} {
			a, other := both[i], both[1-i]
			switch {
			case !a.IsValid() && other.IsValid() && own != none && gateway != none:
				e.Add(path,
					"has no %s address like %s, that of the other end; write both families at both ends, or the same one", family(other), other)
			case !a.IsValid():
			case !unicast(a):
				e.Add(path, "%s is no host's address; write a unicast address, such as 10.80.0.2 or fd80::2", a)
			case a.Is6() && a.IsLinkLocalUnicast():
				e.Add(path, "%s is an address of one link; write one of a unique local prefix, such as fd80::2", a)
			case i == 1 && a == other:
				e.Add(path, "%s is this node's own address; write the gateway's", a)
			}
		}
	}
	if own.V6.IsValid() && c.MTU < minMTU6 {
		e.Add("mtu", "%d, and address is IPv6, which needs %d; write that or more, here and at the gateway",
			c.MTU, minMTU6)
	}
}

// ends are the internal addresses of both ends, of one family.
type ends struct{ own, gateway netip.Addr }

// ends returns the ends of each configured family, IPv4 first.
func (c *Config) ends() (all []ends) {
	for _, e := range []ends{{c.Address.V4, c.GatewayAddress.V4}, {c.Address.V6, c.GatewayAddress.V6}} {
		if e.own.IsValid() {
			all = append(all, e)
		}
	}
	return all
}

// of returns the address of p that is of a's family.
func of(p geneve.Pair, a netip.Addr) netip.Addr {
	if a.Is4() {
		return p.V4
	}
	return p.V6
}

func family(a netip.Addr) string {
	if a.Is4() {
		return "IPv4"
	}
	return "IPv6"
}

// written returns p as in a configuration file.
func written(p geneve.Pair) string {
	switch {
	case !p.V6.IsValid():
		return p.V4.String()
	case !p.V4.IsValid():
		return p.V6.String()
	}
	return fmt.Sprintf(`[%s, "%s"]`, p.V4, p.V6)
}

// unicast reports whether a can be the address of one host.
func unicast(a netip.Addr) bool {
	return !a.IsUnspecified() && !a.IsLoopback() && !a.IsMulticast() &&
		a != netip.AddrFrom4([4]byte{255, 255, 255, 255})
}
