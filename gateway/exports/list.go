package exports

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
)

// MaxPorts is how many ports a list may have, of all exports together. It bounds what a peer can
// make this cluster keep.
const MaxPorts = 500

const (
	maxLabel = 63                                 // bytes of a name, as of a DNS label (RFC 1035, Section 2.3.4)
	maxPort  = 1 + maxLabel + 1 + 2               // bytes of an encoded port
	maxOwn   = 2*(1+maxLabel) + 1 + 16 + 2        // bytes of an encoded export without its ports
	maxList  = 2 + MaxPorts*(maxOwn+maxPort)      // bytes of an encoded list: each export has a port
	maxParts = 1 + (maxList-1)/(leastPart-header) // of a list in the smallest parts
)

// An Export is a Service that the peers of its cluster can reach at the Export's own address.
type Export struct {
	Namespace, Name string
	Address         netip.Addr // in the exporting cluster
	Ports           []LabelPort
}

// A LabelPort is one port of an Export.
type LabelPort struct {
	Name     string // may be empty
	Protocol uint8  // IANA protocol number
	Port     uint16
}

// encode returns a list in the format of datagrams. decode checks the limits.
func encode(all []Export) []byte {
	b := binary.BigEndian.AppendUint16(nil, uint16(len(all)))
	text := func(s string) { b = append(append(b, byte(len(s))), s...) }
	for i := range all {
		e := &all[i]
		text(e.Namespace)
		text(e.Name)
		address := e.Address.AsSlice()
		b = append(append(b, byte(len(address))), address...)
		b = binary.BigEndian.AppendUint16(b, uint16(len(e.Ports)))
		for _, p := range e.Ports {
			text(p.Name)
			b = binary.BigEndian.AppendUint16(append(b, p.Protocol), p.Port)
		}
	}
	return b
}

// errEnd means that a list ends too early or too late.
var errEnd = errors.New("its lengths do not add up")

// reader reads the fields of a list. After the first error it returns zeros.
type reader struct {
	b   []byte
	err error
}

func (r *reader) next(n int) []byte {
	if r.err == nil && n > len(r.b) {
		r.err = errEnd
	}
	if r.err != nil {
		return make([]byte, n)
	}
	b := r.b[:n]
	r.b = r.b[n:]
	return b
}

func (r *reader) byte() int   { return int(r.next(1)[0]) }
func (r *reader) number() int { return int(binary.BigEndian.Uint16(r.next(2))) }
func (r *reader) fail(err error) {
	if r.err == nil {
		r.err = err
	}
}

func (r *reader) text() string {
	n := r.byte()
	if n > maxLabel {
		r.fail(fmt.Errorf("a name of %d bytes; at most %d are possible", n, maxLabel))
		return ""
	}
	return string(r.next(n))
}

// decode reads a list. It accepts any bytes, and returns a list or an error.
func decode(b []byte) ([]Export, error) {
	r := &reader{b: b}
	n, ports := r.number(), 0
	all := make([]Export, 0, min(n, MaxPorts))
	for i := 0; i < n && r.err == nil; i++ {
		e := Export{Namespace: r.text(), Name: r.text()}
		switch size := r.byte(); size {
		case 4, 16:
			e.Address, _ = netip.AddrFromSlice(r.next(size))
		default:
			r.fail(fmt.Errorf("an address of %d bytes", size))
		}
		own := r.number()
		if ports += own; ports > MaxPorts {
			r.fail(fmt.Errorf("more than %d ports", MaxPorts))
		} else if own == 0 {
			r.fail(errors.New("an export without ports"))
		}
		for j := 0; j < own && r.err == nil; j++ {
			e.Ports = append(e.Ports, LabelPort{Name: r.text(), Protocol: uint8(r.byte()), Port: uint16(r.number())})
		}
		all = append(all, e)
	}
	if len(r.b) > 0 {
		r.fail(errEnd)
	}
	if r.err != nil {
		return nil, r.err
	}
	return all, nil
}
