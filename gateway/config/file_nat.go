package config

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"culvert/gateway/configfile"
	"culvert/nat/rules"
)

type (
	fileNAT struct {
		UnknownSource  list          `json:"unknownSource"`
		Addresses      []fileMapping `json:"addresses"`
		Services       []fileService `json:"services"`
		Admit          scalar        `json:"admit"`
		Exports        []fileExport  `json:"exports"`
		MaxConnections scalar        `json:"maxConnections"`
	}
	fileMapping struct {
		External list   `json:"external"`
		Internal list   `json:"internal"`
		Via      scalar `json:"via"`

		ProxyProtocol scalar `json:"proxyProtocol"`
	}
	fileService struct {
		Name            scalar        `json:"name"`
		Address         list          `json:"address"`
		Port            scalar        `json:"port"`
		Protocol        scalar        `json:"protocol"`
		Balance         scalar        `json:"balance"`
		Affinity        scalar        `json:"affinity"`
		AffinityTimeout scalar        `json:"affinityTimeout"`
		OnRemoval       scalar        `json:"onRemoval"`
		ProxyProtocol   scalar        `json:"proxyProtocol"`
		Backends        []fileBackend `json:"backends"`
	}
	fileBackend struct {
		Address scalar `json:"address"`
		Port    scalar `json:"port"`
		Weight  scalar `json:"weight"`
		Via     scalar `json:"via"`
	}
	fileExport struct {
		CIDR     scalar `json:"cidr"`
		Protocol scalar `json:"protocol"`
		Port     scalar `json:"port"`
	}
	fileRule struct {
		Name     scalar   `json:"name"`
		From     scalar   `json:"from"`
		Src      []scalar `json:"src"`
		Dst      []scalar `json:"dst"`
		Protocol scalar   `json:"protocol"`
		Ports    scalar   `json:"ports"`
		Action   scalar   `json:"action"`
	}
)

const (
	maxConnections     = 1 << 24
	maxWeight          = 1000
	maxAffinityTimeout = 24 * time.Hour
)

// protocols are the names for use in rules and services, with IANA's numbers.
var protocols = map[string]uint8{"tcp": 6, "udp": 17, "sctp": 132, "icmp": 1, "icmpv6": 58}

func (f *fileNAT) config(e *configfile.Errors, c *Config) {
	if f.MaxConnections != "auto" {
		c.MaxConnections = e.Int("nat.maxConnections", f.MaxConnections, 0, 1, maxConnections)
	}
	for i, m := range f.Addresses {
		at := fmt.Sprintf("nat.addresses[%d].", i)
		c.Addresses = append(c.Addresses, AddressMapping{
			External: pairOrAuto(e, at+"external", m.External),
			Internal: pair(e, at+"internal", m.Internal),
			Via:      string(m.Via),

			ProxyProtocol: proxyProtocol(e, at, m.ProxyProtocol),
		})
	}
	for i, s := range f.Services {
		c.Services = append(c.Services, s.service(e, fmt.Sprintf("nat.services[%d].", i)))
	}
	if e.OneOf("nat.admit", f.Admit, "all", "exports") == "exports" {
		c.Admit = AdmitExports
	}
	for i, x := range f.Exports {
		at := fmt.Sprintf("nat.exports[%d].", i)
		c.Exports = append(c.Exports, rules.Endpoint{
			Prefix:   e.Prefix(at+"cidr", x.CIDR),
			Protocol: protocols[e.OneOf(at+"protocol", x.Protocol, "tcp", "udp", "sctp", "icmp", "icmpv6")],
			Port:     uint16(e.Int(at+"port", x.Port, 0, 1, 65535)),
		})
	}
}

func pairOrAuto(e *configfile.Errors, path string, l list) rules.Pair {
	if l.Is(auto) {
		return rules.Pair{}
	}
	return pair(e, path, l)
}

func (f *fileService) service(e *configfile.Errors, at string) Service {
	s := Service{
		Name:            string(f.Name),
		Address:         pairOrAuto(e, at+"address", f.Address),
		Port:            port(e, at+"port", f.Port),
		Protocol:        protocols[e.OneOf(at+"protocol", f.Protocol, "tcp", "udp", "sctp")],
		AffinityTimeout: e.Duration(at+"affinityTimeout", f.AffinityTimeout, 0, maxAffinityTimeout),
		ProxyProtocol:   proxyProtocol(e, at, f.ProxyProtocol),
	}
	if s.ProxyProtocol && s.Protocol != protocols["tcp"] && !e.Bad(at+"protocol") {
		e.Add(at+"proxyProtocol", "v2 needs protocol: tcp; nothing else has a stream to begin with a header")
	}
	if e.OneOf(at+"balance", f.Balance, "random", "hash") == "hash" {
		s.Balance = rules.BalanceHash
	}
	if e.OneOf(at+"affinity", f.Affinity, "none", "clientIP") == "clientIP" {
		s.Affinity = rules.AffinityClientIP
	}
	if e.OneOf(at+"onRemoval", f.OnRemoval, "keep", "reset") == "reset" {
		s.OnRemoval = rules.RemovalReset
	}
	if len(f.Backends) == 0 {
		e.Add(at+"backends", "missing; a service stands for at least one backend")
	}
	for i, b := range f.Backends {
		at := fmt.Sprintf("%sbackends[%d].", at, i)
		s.Backends = append(s.Backends, Backend{
			Address: e.IP(at+"address", b.Address),
			Port:    port(e, at+"port", b.Port),
			Weight:  e.Int(at+"weight", b.Weight, 1, 1, maxWeight),
			Via:     string(b.Via),
		})
	}
	return s
}

// proxyProtocol reads whether servers get a PROXY protocol header.
func proxyProtocol(e *configfile.Errors, at string, s scalar) bool {
	return e.OneOf(at+"proxyProtocol", s, "none", "v2") == "v2"
}

// port reads a required port number.
func port(e *configfile.Errors, path string, s scalar) uint16 {
	if e.Text(path, s) == "" {
		return 0
	}
	return uint16(e.Int(path, s, 0, 1, 65535))
}

func (f *fileRule) rule(e *configfile.Errors, at string) rules.FilterRule {
	r := rules.FilterRule{
		Name:        string(f.Name),
		Source:      e.Prefixes(at+".src", f.Src),
		Destination: e.Prefixes(at+".dst", f.Dst),
		Ports:       portRanges(e, at+".ports", f.Ports),
	}
	switch e.OneOf(at+".from", f.From, "", "remote", "local") {
	case "remote":
		r.From = rules.FromRemote
	case "local":
		r.From = rules.FromLocal
	}
	if f.Protocol != "" {
		r.Protocol = protocols[e.OneOf(at+".protocol", f.Protocol, "tcp", "udp", "sctp", "icmp", "icmpv6")]
	}
	if len(r.Ports) > 0 && (r.Protocol == 0 || r.Protocol == protocols["icmp"] || r.Protocol == protocols["icmpv6"]) {
		e.Add(at+".ports", "ports need protocol: tcp, udp or sctp; add one, or leave ports out")
	}
	if e.Text(at+".action", f.Action) != "" {
		switch e.OneOf(at+".action", f.Action, "accept", "drop", "reject") {
		case "drop":
			r.Action = rules.FilterDrop
		case "reject":
			r.Action = rules.FilterReject
		}
	}
	return r
}

// portRanges reads "22" or "22,8000-8080".
func portRanges(e *configfile.Errors, path string, s scalar) []rules.PortRange {
	if s == "" {
		return nil
	}
	var ranges []rules.PortRange
	for part := range strings.SplitSeq(string(s), ",") {
		first, last, isRange := strings.Cut(strings.TrimSpace(part), "-")
		if !isRange {
			last = first
		}
		low, err1 := strconv.ParseUint(first, 10, 16)
		high, err2 := strconv.ParseUint(last, 10, 16)
		if err1 != nil || err2 != nil || low == 0 || low > high {
			e.Add(path, "%q is not a port or a range such as 8000-8080", part)
			return nil
		}
		ranges = append(ranges, rules.PortRange{First: uint16(low), Last: uint16(high)})
	}
	return ranges
}
