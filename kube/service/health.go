package service

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"culvert/gateway/seats"
)

const checkPatience = 2 * time.Second

// checks answers the health checks of load balancers, at this node's addresses. It belongs to one
// goroutine.
type checks struct {
	healthy   atomic.Bool // the state served is that of the API server
	answering map[asked]*answering
}

// asked identifies a health check: a Service, at addresses of one family.
type asked struct {
	Name
	v4 bool
}

// An answering is the server for one Service and family, limited at each address by package seats.
type answering struct {
	port      uint16
	addresses []netip.Addr
	endpoints atomic.Int64
	server    *http.Server
}

// set answers the checks in all, and no others. It returns the errors of listening.
func (c *checks) set(addresses []netip.Addr, all []Check) map[Name]error {
	of := map[bool][]netip.Addr{}
	for _, a := range addresses {
		of[a.Is4()] = append(of[a.Is4()], a)
	}
	failed := map[Name]error{}
	wanted := map[asked]Check{}
	for _, k := range all {
		wanted[asked{k.Name, k.V4}] = k
	}
	for who, a := range c.answering {
		if k, ok := wanted[who]; !ok || k.Port != a.port || !slices.Equal(of[who.v4], a.addresses) {
			a.server.Close()
			delete(c.answering, who)
		}
	}
	for _, k := range all {
		who := asked{k.Name, k.V4}
		a := c.answering[who]
		if a == nil {
			var err error
			if a, err = c.open(of[who.v4], k); err != nil {
				failed[who.Name] = errors.Join(failed[who.Name], err)
				continue
			}
			c.answering[who] = a
		}
		a.endpoints.Store(int64(k.Endpoints))
	}
	return failed
}

func (c *checks) open(addresses []netip.Addr, k Check) (*answering, error) {
	a := &answering{port: k.Port, addresses: addresses}
	a.server = &http.Server{
		Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			c.answer(w, k.Name, int(a.endpoints.Load()))
		}),
		ReadTimeout: checkPatience, WriteTimeout: checkPatience, MaxHeaderBytes: 1 << 12,
	}
	a.server.SetKeepAlivesEnabled(false)
	var listeners []net.Listener
	listen := net.ListenConfig{Control: sharePort}
	for _, address := range addresses {
		l, err := listen.Listen(context.Background(), "tcp", netip.AddrPortFrom(address, k.Port).String())
		if err != nil {
			for _, l := range listeners {
				err = errors.Join(err, l.Close())
			}
			return nil, err
		}
		listeners = append(listeners, seats.New(l))
	}
	a.endpoints.Store(int64(k.Endpoints)) // before anybody asks
	for _, l := range listeners {
		go a.server.Serve(l) // ends when closed
	}
	return a, nil
}

// sharePort lets a process that takes over listen while the previous one still does. All processes
// of one user may (SO_REUSEPORT, socket(7)).
func sharePort(_, _ string, c syscall.RawConn) error {
	var err error
	if e := c.Control(func(fd uintptr) {
		err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_REUSEPORT,
			1)
	}); e != nil {
		return e
	}
	return os.NewSyscallError("setsockopt", err)
}

// answer gives the same answer as kube-proxy.
func (c *checks) answer(w http.ResponseWriter, name Name, endpoints int) {
	healthy := c.healthy.Load()
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.Header().Set("X-Load-Balancing-Endpoint-Weight", strconv.Itoa(endpoints))
	if endpoints > 0 && healthy {
		w.WriteHeader(http.StatusOK)
	} else {
		w.WriteHeader(http.StatusServiceUnavailable)
	}
	fmt.Fprintf(w,
		"{\n\t\"service\": {\n\t\t\"namespace\": %q,\n\t\t\"name\": %q\n\t},\n\t\"localEndpoints\": %d,\n\t\"serviceProxyHealthy\": %v\n}",
		name.Namespace, name.Name, endpoints, healthy)
}

// close stops all servers.
func (c *checks) close() {
	for _, a := range c.answering {
		a.server.Close()
	}
}
