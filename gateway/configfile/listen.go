package configfile

import (
	"net"
	"net/netip"
	"strconv"
	"strings"
)

// Listen requires host:port, such as example, where a process can listen. The host may be missing,
// and the port may be 0.
func (e *Errors) Listen(path, address, example string) {
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		e.NotHostPort(path, address, example)
		return
	}
	if a, err := netip.ParseAddr(host); host != "" && !IsHostName(host) && (err != nil || a.Zone() != "") {
		e.Add(path, "%q is neither an address nor a host name", host)
	}
	if _, err := strconv.ParseUint(port, 10, 16); err != nil {
		e.Add(path, "%q is not a port from 0 to 65535", port)
	}
}

// NotHostPort records a text without a port, or with a port that is ambiguous for lack of brackets.
func (e *Errors) NotHostPort(path, s, example string) {
	remedy := "add a port, such as " + example
	if strings.Count(s, ":") > 1 {
		remedy = "write an IPv6 address in brackets, such as [2001:db8::7]:51840"
	}
	e.Add(path, "%q is not host:port; %s", s, remedy)
}
