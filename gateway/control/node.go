package control

import (
	"context"
	"errors"
	"fmt"
	"log"
	"net/http"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// NodeStatus is the status of a node that serves Services or has links to gateways.
type NodeStatus struct {
	Name          string       `json:"name"`
	Version       Version      `json:"version"`
	PID           int          `json:"pid"`
	Started       time.Time    `json:"started"`
	UptimeSeconds float64      `json:"uptimeSeconds"`
	Mode          string       `json:"mode"`                // tun or sockets; "": Services are not served
	Interface     string       `json:"interface,omitempty"` // of mode tun
	Addresses     []netip.Addr `json:"addresses"`           // of the node, for node ports
	// why Services are not served as they should be; "": they are
	Fault     string        `json:"fault"`
	Findings  []Finding     `json:"findings,omitempty"` // what does not work, and why, as in the log
	Services  []NodeService `json:"services"`
	Announced []string      `json:"announced"` // addresses that this node announces at layer 2
	Table     Table         `json:"table"`
	// packets to Services, and answers; in mode sockets only Drops: refused connections
	Traffic Traffic `json:"traffic"`

	// DeviceDrops are packets that the kernel dropped because culvert had not read those before.
	// Reason is the TUN device.
	DeviceDrops []Drop `json:"deviceDrops,omitempty"`

	Links   []NodeLink       `json:"links,omitempty"`   // those that Liqo's resources or Peerings request
	Guarded []netip.AddrPort `json:"guarded,omitempty"` // gateways at which pods cannot act as this node
	// of packets that came for or were to leave by any link, by reason
	LinkDrops []Drop    `json:"linkDrops,omitempty"`
	Waiting   []string  `json:"waiting,omitempty"` // what links wait for
	LeftOut   []LeftOut `json:"leftOut,omitempty"` // Liqo's resources, or Peerings, without effect
}

// A NodeLink is a link of a node to a gateway.
type NodeLink struct {
	Interface string `json:"interface"`
	// carried: by culvert; kernel: by the kernel, or Liqo's agent must make it; pending; refused
	State          string     `json:"state"`
	Fault          string     `json:"fault,omitempty"`   // why it is refused
	Warning        string     `json:"warning,omitempty"` // why packets do not pass, or not all
	VNI            uint32     `json:"vni"`
	MTU            int        `json:"mtu"`
	Underlay       netip.Addr `json:"underlay"`       // of the gateway
	Address        netip.Addr `json:"address"`        // of this node in the tunnel; of two the IPv4 one
	GatewayAddress netip.Addr `json:"gatewayAddress"` // of the gateway in the tunnel, likewise
	// The same, of each family.
	Addresses        []netip.Addr `json:"addresses"`
	GatewayAddresses []netip.Addr `json:"gatewayAddresses"`

	// Of a carried link.
	Answers         bool     `json:"answers"`              // the gateway has answered ARP in the last seconds
	RTTSeconds      *float64 `json:"rttSeconds,omitempty"` // round trip; absent if unknown
	ReceivedPackets uint64   `json:"receivedPackets"`      // inner ones
	SentPackets     uint64   `json:"sentPackets"`
	ReceivedBytes   uint64   `json:"receivedBytes"`
	SentBytes       uint64   `json:"sentBytes"`
}

// A NodeService is one port of a Service that a node serves.
type NodeService struct {
	Name      string       `json:"name"`
	Protocol  string       `json:"protocol"`
	Addresses []netip.Addr `json:"addresses"`          // cluster, external and load balancer addresses
	Port      uint16       `json:"port"`               // at Addresses
	NodePort  uint16       `json:"nodePort,omitempty"` // 0: none
	Endpoints int          `json:"endpoints"`
}

// NewNodeServer returns a Server for a node's status. It answers no requests before Serve. Several
// goroutines may call status.
func NewNodeServer(status func() NodeStatus, errors *log.Logger) *Server {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /v1/node", func(w http.ResponseWriter, _ *http.Request) { answer(w, status()) })
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		fail(w, http.StatusNotFound, "this is a node, which knows culvert status alone")
	})
	return newServer(mux, errors)
}

// NodePath returns the socket path of the node called name.
func NodePath(name string) string { return filepath.Join(runtimeDirectory(), nodeFolder, name+".sock") }

const nodeFolder = "culvert/nodes"

// FindNode returns a Client for the node called name: the path of a socket, or the node's name; ""
// means the only running one.
func FindNode(ctx context.Context, name string) (*Client, error) {
	if strings.Contains(name, "/") {
		c := NewClient(name)
		return c, c.alive(ctx)
	}
	running := RunningNodes(ctx, name)
	switch len(running) {
	case 0:
		return nil, errors.New("no node of this user serves Services or has links here")
	case 1:
		return running[0], nil
	}
	var names []string
	for _, c := range running {
		names = append(names, c.Path)
	}
	return nil, fmt.Errorf("--socket: %d nodes run here; choose one: %s", len(running), strings.Join(names, ", "))
}

// RunningNodes returns a Client for each node called name; "" means all running ones.
func RunningNodes(ctx context.Context, name string) (running []*Client) {
	for _, dir := range slices.Compact([]string{"/run", runtimeDirectory()}) {
		found, _ := filepath.Glob(filepath.Join(dir, nodeFolder, "*.sock")) // the pattern is good
		for _, path := range found {
			if c := NewClient(path); (name == "" || filepath.Base(path) == name+".sock") && c.alive(ctx) == nil {
				running = append(running, c)
			}
		}
	}
	return running
}

// Node requests the node's status.
func (c *Client) Node(ctx context.Context) (*NodeStatus, error) {
	s := new(NodeStatus)
	return s, c.Get(ctx, http.MethodGet, "/v1/node", nil, s)
}
