package services

import (
	"fmt"
	"net/netip"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"

	"golang.org/x/sys/unix"

	"culvert/gateway/configfile"
	"culvert/nat/rules"
)

// Defaults and limits of the configuration.
const (
	DefaultInterface = "culvert1"
	DefaultMTU       = 1500

	minMTU, maxMTU     = 1280, 65535
	maxPort            = rules.LastRulePort
	maxAffinityTimeout = 24 * time.Hour
	MaxWeight          = 1000 // of an endpoint
	// maximum number of ranges: the kernel walks the list of their rules for each route lookup
	maxNodePorts     = 256
	maxEndpointPorts = 16 // the same, for each CIDR of pods
	// addresses that one node announces: again a list of rules, and each IPv6 address needs a
	// socket
	MaxAnnounced = 256
)

// defaultPorts are above the ports that Linux gives to its own connections
// (net.ipv4.ip_local_port_range).
var defaultPorts = rules.PortRange{First: 61000, Last: maxPort}

// A Mode says how Services are served.
type Mode string

// The modes.
const (
	TUN     Mode = "tun"     // by a TUN device, with routes and rules that lead to it
	Sockets Mode = "sockets" // by listening sockets, without any privilege
)

// A Config is the Services part of a node's configuration.
type Config struct {
	Mode      Mode
	Node      string // whose endpoints are local
	Interface string
	Addresses []netip.Addr // of this node, for node ports; the first of each family is used for masquerading
	Pods      []netip.Prefix
	Bridged   []netip.Prefix
	// hosts of other clusters that see a client pod's own address, because their answers come
	// through this node too
	Routed       []netip.Prefix
	ServiceCIDRs []netip.Prefix
	Ports        rules.PortRange // for masquerading
	MTU          int
	State        string         // folder with what the next run needs to continue connections; "": they do not continue
	Metrics      string         // host:port of /metrics and /healthz; "": nowhere
	Announce     []netip.Prefix // load balancer addresses of which each is announced by one node at layer 2
	AnnounceOn   []string       // links to announce on; nil: all that are attached to a network
	Answers      []netip.Addr   // the addresses that this node announces
	Services     []Service

	// From the command line: which Services Kubernetes provides ("" none); and whether to take over
	// from a process that serves with the same State.
	Which    string
	TakeOver bool
}

// A Service is one port of a Service.
type Service struct {
	Name                         string
	Protocol                     uint8
	ClusterIPs                   []netip.Addr
	Port                         uint16 // at cluster, external and load balancer addresses
	NodePort                     uint16 // 0: none; for the families of ClusterIPs, or both without
	ExternalIPs, LoadBalancerIPs []netip.Addr
	SourceRanges                 []netip.Prefix // allowed clients of LoadBalancerIPs; nil: all
	Affinity                     rules.Affinity
	AffinityTimeout              time.Duration
	ExternalLocal, InternalLocal bool // the traffic policy is Local
	ProxyProtocol                bool // endpoints get a PROXY protocol header, version 2
	Endpoints                    []Endpoint
}

// An Endpoint is a destination for a Service's clients.
type Endpoint struct {
	Address     netip.Addr
	Port        uint16
	Node        string
	Weight      int               // share of new clients among the endpoints; 0 means 1
	Eligibility rules.Eligibility `json:"Standing"` // which new clients it gets
}

// File mirrors the section of the YAML file.
type File struct {
	Mode         configfile.Scalar   `json:"mode"`
	Interface    configfile.Scalar   `json:"interface"`
	Addresses    []configfile.Scalar `json:"addresses"`
	Pods         []configfile.Scalar `json:"pods"`
	Bridged      []configfile.Scalar `json:"bridged"`
	ServiceCIDRs []configfile.Scalar `json:"serviceCIDRs"`
	ClientPorts  configfile.Scalar   `json:"clientPorts"`
	MTU          configfile.Scalar   `json:"mtu"`
	State        configfile.Scalar   `json:"state"`
	Metrics      configfile.Scalar   `json:"metrics"`
	Announce     []configfile.Scalar `json:"announce"`
	AnnounceOn   []configfile.Scalar `json:"announceOn"`
	Serve        []fileService       `json:"serve"`
}

type fileService struct {
	Name                  configfile.Scalar   `json:"name"`
	Protocol              configfile.Scalar   `json:"protocol"`
	ClusterIP             configfile.List     `json:"clusterIP"`
	Port                  configfile.Scalar   `json:"port"`
	NodePort              configfile.Scalar   `json:"nodePort"`
	ExternalIPs           []configfile.Scalar `json:"externalIPs"`
	LoadBalancerIPs       []configfile.Scalar `json:"loadBalancerIPs"`
	SourceRanges          []configfile.Scalar `json:"sourceRanges"`
	Affinity              configfile.Scalar   `json:"affinity"`
	AffinityTimeout       configfile.Scalar   `json:"affinityTimeout"`
	ExternalTrafficPolicy configfile.Scalar   `json:"externalTrafficPolicy"`
	InternalTrafficPolicy configfile.Scalar   `json:"internalTrafficPolicy"`
	ProxyProtocol         configfile.Scalar   `json:"proxyProtocol"`
	Endpoints             []struct {
		Address configfile.Scalar `json:"address"`
		Port    configfile.Scalar `json:"port"`
		Node    configfile.Scalar `json:"node"`
		Weight  configfile.Scalar `json:"weight"`
	} `json:"endpoints"`
}

var protocols = map[string]uint8{"tcp": unix.IPPROTO_TCP, "udp": unix.IPPROTO_UDP, "sctp": unix.IPPROTO_SCTP}

// Config reads the section, which belongs to the named node, and reports all faults.
func (f *File) Config(e *configfile.Errors, node string) *Config {
	c := f.Base(e, node)
	for i := range f.Serve {
		c.Services = append(c.Services, f.Serve[i].config(e, fmt.Sprintf("services.serve[%d].", i)))
	}
	if len(c.Addresses) == 0 && !e.Bad("services.addresses") {
		e.Missing("services.addresses")
	}
	c.Answers = c.answers()
	c.validateServices(e)
	c.validateAnnounce(e)
	return c
}

// Base is Config for a node whose Services, and possibly addresses, come from elsewhere.
func (f *File) Base(e *configfile.Errors, node string) *Config {
	c := &Config{
		Mode: Mode(e.OneOf("services.mode", f.Mode, string(TUN), string(Sockets))),
		Node: node, Interface: DefaultInterface, Ports: defaultPorts,
		Addresses:    addresses(e, "services.addresses", f.Addresses),
		Pods:         e.Prefixes("services.pods", f.Pods),
		Bridged:      e.Prefixes("services.bridged", f.Bridged),
		ServiceCIDRs: e.Prefixes("services.serviceCIDRs", f.ServiceCIDRs),
		MTU:          e.Int("services.mtu", f.MTU, DefaultMTU, minMTU, maxMTU),
	}
	if f.Interface != "" {
		c.Interface = string(f.Interface)
	}
	if f.ClientPorts != "" {
		c.Ports = clientPorts(e, string(f.ClientPorts))
	}
	if c.State = string(f.State); c.State != "" && (!filepath.IsAbs(c.State) || strings.ContainsFunc(c.State,
		unicode.IsControl)) {
		e.Add("services.state", "%q does not begin with /, or holds what cannot be printed; write such as /run/culvert",
			c.State)
	}
	if c.Metrics = string(f.Metrics); c.Metrics != "" {
		e.Listen("services.metrics", c.Metrics, "127.0.0.1:8083")
	}
	c.readAnnounce(e, f)
	c.validate(e)
	if c.Mode == Sockets {
		f.onlyTUN(e)
	}
	return c
}

// onlyTUN reports fields that need a device in a mode without one.
func (f *File) onlyTUN(e *configfile.Errors) {
	for _, field := range []struct {
		path  string
		given bool
	}{
		{"interface", f.Interface != ""}, {"bridged", len(f.Bridged) > 0}, {"serviceCIDRs", len(f.ServiceCIDRs) > 0},
		{"clientPorts", f.ClientPorts != ""}, {"mtu", f.MTU != ""}, {"state", f.State != ""},
		{"announce", len(f.Announce) > 0}, {"announceOn", len(f.AnnounceOn) > 0},
	} {
		if field.given {
			e.Add("services."+field.path, "mode: sockets has no device; leave it out")
		}
	}
}

func (f *fileService) config(e *configfile.Errors, at string) Service {
	s := Service{
		Name:            e.Text(at+"name", f.Name),
		Protocol:        protocols[e.OneOf(at+"protocol", f.Protocol, "tcp", "udp", "sctp")],
		Port:            port(e, at+"port", f.Port),
		ExternalIPs:     addresses(e, at+"externalIPs", f.ExternalIPs),
		LoadBalancerIPs: addresses(e, at+"loadBalancerIPs", f.LoadBalancerIPs),
		SourceRanges:    e.Prefixes(at+"sourceRanges", f.SourceRanges),
		AffinityTimeout: e.Duration(at+"affinityTimeout", f.AffinityTimeout, 0, maxAffinityTimeout),
		ExternalLocal:   e.OneOf(at+"externalTrafficPolicy", f.ExternalTrafficPolicy, "Cluster", "Local") == "Local",
		InternalLocal:   e.OneOf(at+"internalTrafficPolicy", f.InternalTrafficPolicy, "Cluster", "Local") == "Local",
		ProxyProtocol:   e.OneOf(at+"proxyProtocol", f.ProxyProtocol, "none", "v2") == "v2",
	}
	if s.ProxyProtocol && s.Protocol != unix.IPPROTO_TCP && !e.Bad(at+"protocol") {
		e.Add(at+"proxyProtocol", "v2 needs protocol: tcp; nothing else has a stream to begin with a header")
	}
	if len(f.ClusterIP) > 0 {
		v4, v6 := e.Pair(at+"clusterIP", f.ClusterIP)
		for _, a := range []netip.Addr{v4, v6} {
			if a = ofHost(e, at+"clusterIP", a); a.IsValid() {
				s.ClusterIPs = append(s.ClusterIPs, a)
			}
		}
	}
	if f.NodePort != "" {
		s.NodePort = port(e, at+"nodePort", f.NodePort)
	}
	if e.OneOf(at+"affinity", f.Affinity, "none", "clientIP") == "clientIP" {
		s.Affinity = rules.AffinityClientIP
	}
	for i, p := range f.Endpoints {
		at := fmt.Sprintf("%sendpoints[%d].", at, i)
		s.Endpoints = append(s.Endpoints, Endpoint{
			Address: address(e, at+"address", p.Address), Port: port(e, at+"port", p.Port), Node: string(p.Node),
			Weight: e.Int(at+"weight", p.Weight, 1, 1, MaxWeight),
		})
	}
	return s
}

func port(e *configfile.Errors, path string, s configfile.Scalar) uint16 {
	if e.Text(path, s) == "" {
		return 0
	}
	return uint16(e.Int(path, s, 0, 1, maxPort))
}

func addresses(e *configfile.Errors, path string, list []configfile.Scalar) (all []netip.Addr) {
	for i, s := range list {
		if a := address(e, fmt.Sprintf("%s[%d]", path, i), s); a.IsValid() {
			all = append(all, a)
		}
	}
	return all
}

// address requires the address of a host.
func address(e *configfile.Errors, path string, s configfile.Scalar) netip.Addr {
	return ofHost(e, path, e.IP(path, s))
}

func ofHost(e *configfile.Errors, path string, a netip.Addr) netip.Addr {
	if a.IsValid() && (a.IsUnspecified() || a.IsLoopback() || a.IsMulticast() || a.IsLinkLocalUnicast() ||
		a == netip.AddrFrom4([4]byte{255, 255, 255, 255})) {
		e.Add(path, "%s is no address that other hosts reach", a)
		return netip.Addr{}
	}
	return a
}

func clientPorts(e *configfile.Errors, s string) rules.PortRange {
	first, last, _ := strings.Cut(s, "-")
	low, err1 := strconv.ParseUint(first, 10, 16)
	high, err2 := strconv.ParseUint(last, 10, 16)
	if err1 != nil || err2 != nil || low < 1024 || high < low+63 || high > maxPort {
		e.Add("services.clientPorts", "%q is not a range of at least 64 ports from 1024 to 65534, such as 61000-65534",
			s)
		return defaultPorts
	}
	return rules.PortRange{First: uint16(low), Last: uint16(high)}
}

// A name that the kernel accepts (dev_valid_name) and that needs no quotes in a shell.
var interfaceName = regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9_.-]*$`)

func isInterfaceName(s string) bool { return len(s) < unix.IFNAMSIZ && interfaceName.MatchString(s) }

// validate reports contradictions.
func (c *Config) validate(e *configfile.Errors) {
	if !isInterfaceName(c.Interface) {
		e.Add("services.interface",
			"%q is no interface name: want 1 to %d letters, digits, dots, dashes and underscores",
			c.Interface, unix.IFNAMSIZ-1)
	}
	for i, p := range c.ServiceCIDRs {
		if slices.ContainsFunc(c.Pods, p.Overlaps) {
			e.Add(fmt.Sprintf("services.serviceCIDRs[%d]", i), "%s overlaps services.pods", p)
		}
		for _, a := range c.Addresses {
			if p.Contains(a) {
				e.Add(fmt.Sprintf("services.serviceCIDRs[%d]", i), "%s contains %s of services.addresses", p, a)
			}
		}
	}
}

func (c *Config) validateServices(e *configfile.Errors) {
	type at struct {
		netip.Addr
		port     uint16
		protocol uint8
	}
	taken, names := map[at]string{}, map[string]string{}
	for i := range c.Services {
		s, path := &c.Services[i], fmt.Sprintf("services.serve[%d].", i)
		if other := names[s.Name]; other != "" && s.Name != "" {
			e.Add(path+"name", "%q is also %s", s.Name, other)
		}
		names[s.Name] = path + "name"
		take := func(field string, a netip.Addr, port uint16) {
			k := at{a, port, s.Protocol}
			if other := taken[k]; other != "" && port != 0 {
				e.Add(path+field, "port %d is also that of %s", port, other)
			}
			taken[k] = path + field
		}
		for _, list := range []struct {
			field string
			all   []netip.Addr
		}{{"clusterIP", s.ClusterIPs}, {"externalIPs", s.ExternalIPs}, {"loadBalancerIPs", s.LoadBalancerIPs}} {
			for _, a := range list.all {
				take(list.field, a, s.Port)
			}
		}
		if s.NodePort != 0 {
			take("nodePort", netip.Addr{}, s.NodePort)
			if c.Reserves(s.NodePort) {
				e.Add(path+"nodePort", "%d is one of services.clientPorts, %d-%d; choose another", s.NodePort,
					c.Ports.First, c.Ports.Last)
			}
		}
		if len(s.ClusterIPs)+len(s.ExternalIPs)+len(s.LoadBalancerIPs) == 0 && s.NodePort == 0 {
			e.Add(path+"clusterIP", "missing, and nodePort, externalIPs and loadBalancerIPs too: nobody could reach it")
		}
		if len(s.SourceRanges) > 0 && len(s.LoadBalancerIPs) == 0 {
			e.Add(path+"sourceRanges", "there are no loadBalancerIPs, and it is for nothing else")
		}
		for _, a := range s.ClusterIPs {
			if slices.Contains(c.Addresses, a) {
				e.Add(path+"clusterIP", "%s is one of services.addresses", a)
			}
		}
		if c.Mode != Sockets {
			continue
		}
		if len(s.ClusterIPs) > 0 {
			e.Add(path+"clusterIP", "no socket listens there with mode: sockets; leave it out, and write nodePort")
		}
		if s.Protocol == unix.IPPROTO_SCTP {
			e.Add(path+"protocol", "sctp needs mode: tun")
		}
	}
}

// Reserves reports whether a port is one of those given to clients.
func (c *Config) Reserves(port uint16) bool {
	return c.Mode != Sockets && c.Ports.First <= port && port <= c.Ports.Last
}
