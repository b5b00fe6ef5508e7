package liqo

import (
	"encoding/base64"
	"fmt"
	"net/netip"

	"culvert/kube/objects"
	"culvert/nat/packet"
	"culvert/nat/rules"
)

// fabricSpec is the part of an InternalFabric's spec used here.
type fabricSpec struct {
	MTU         int      `json:"mtu"`
	RemoteCIDRs []string `json:"remoteCIDRs"`
	Interface   struct {
		Gateway struct {
			IP string `json:"ip"`
		} `json:"gateway"`
	} `json:"interface"`
}

type fabric struct {
	mtu     int
	address netip.Addr
	remote  []netip.Prefix
}

func (s *fabricSpec) fabric(f *faults) *fabric {
	out := &fabric{mtu: s.MTU, address: readHost("spec.interface.gateway.ip", s.Interface.Gateway.IP, f)}
	for i, c := range s.RemoteCIDRs {
		out.remote = append(out.remote, readPrefix(fmt.Sprintf("spec.remoteCIDRs[%d]", i), c, f))
	}
	return out
}

// nodeSpec and nodeStatus are the parts of an InternalNode used here.
type nodeSpec struct {
	Interface struct {
		Gateway struct {
			Name string `json:"name"`
		} `json:"gateway"`
		Node struct {
			IP string `json:"ip"`
		} `json:"node"`
	} `json:"interface"`
}

type nodeStatus struct {
	NodeIP struct {
		Local  string `json:"local"`
		Remote string `json:"remote"`
	} `json:"nodeIP"`
}

type internalNode struct {
	device            string
	address, underlay netip.Addr
	waiting           string // what is missing; "" = nothing
}

// Meanwhile is a part of what a gateway waits for that it can do without as long as it is a
// standby.
const Meanwhile = ", which Liqo writes after this pod becomes active; until then this is "

func readNode(o *objects.Object, self *Self, f *faults) *internalNode {
	var spec nodeSpec
	var status nodeStatus
	f.read("spec", o.Spec, &spec)
	f.read("status", o.Status, &status)
	out := &internalNode{
		device:  spec.Interface.Gateway.Name,
		address: readHost("spec.interface.node.ip", spec.Interface.Node.IP, f),
	}
	if rules.ReservedName(o.Metadata.Name) {
		f.add("metadata.name", "%q is a name of the gateway's own", o.Metadata.Name)
	}
	switch out.device {
	case "":
		f.add("spec.interface.gateway.name", "missing")
	case tunnelDevice, anyTunnel:
		f.add("spec.interface.gateway.name", "%q is the WireGuard tunnel's", out.device)
	}
	field, value, other, meanwhile := "status.nodeIP.remote", status.NodeIP.Remote, "status.nodeIP.local",
		status.NodeIP.Local
	if o.Metadata.Name == self.Node {
		field, value, other, meanwhile = other, meanwhile, field, value
	}
	if value == "" {
		// Liqo measures one of the two for the pod that is active, and the other one only after
		// that pod has moved. A standby must know the node before, or it could copy no connection
		// of it. Both addresses are the node's own.
		if out.waiting = "no " + field; meanwhile == "" {
			return out
		}
		out.waiting += Meanwhile + other
		field, value = other, meanwhile
	}
	out.underlay = readAddress(field, value, f)
	if a := out.underlay; a.IsValid() && (a.IsUnspecified() || a.IsMulticast()) {
		f.add(field, "%s is no host's address", a)
	}
	return out
}

// readHost reads an address of the internal network.
func readHost(field, value string, f *faults) netip.Addr {
	if value == "" {
		f.add(field, "missing")
		return netip.Addr{}
	}
	a := readAddress(field, value, f)
	if a.IsValid() && !packet.Forwardable(a) {
		f.add(field, "routers do not forward packets to %s", a)
	}
	return a
}

// tunnelSpec is the part of a GeneveTunnel's spec used here.
type tunnelSpec struct {
	ID   *int64 `json:"id"`
	Node struct {
		Name string `json:"name"`
	} `json:"internalNodeRef"`
	Fabric struct {
		Name string `json:"name"`
	} `json:"internalFabricRef"`
}

func (s *tunnelSpec) check(f *faults) {
	switch {
	case s.ID == nil:
		f.add("spec.id", "missing")
	case *s.ID < 0 || *s.ID >= 1<<24:
		f.add("spec.id", "%d is no number from 0 to %d", *s.ID, 1<<24-1)
	}
	if s.Node.Name == "" {
		f.add("spec.internalNodeRef.name", "missing")
	}
	if s.Fabric.Name == "" {
		f.add("spec.internalFabricRef.name", "missing")
	}
}

// keySpec is the spec of a PublicKey.
type keySpec struct {
	PublicKey string `json:"publicKey"`
}

func (s *keySpec) key(f *faults) (key [32]byte) {
	b, err := base64.StdEncoding.DecodeString(s.PublicKey)
	switch {
	case err != nil:
		f.add("spec.publicKey", "no base64: %v", err)
	case len(b) != len(key):
		f.add("spec.publicKey", "%d bytes, not %d", len(b), len(key))
	default:
		key = [32]byte(b)
	}
	return key
}
