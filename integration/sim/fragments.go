package sim

import (
	"encoding/binary"
	"net/netip"

	"culvert/nat/nattest"
)

// reassembly puts together the datagrams in fragments that reach a node.
type reassembly struct {
	all map[datagram]*fragments
}

// datagram is what the fragments of one have in common.
type datagram struct {
	source, destination netip.Addr
	protocol            uint8
	id                  uint32
}

// fragments are those of one datagram.
type fragments struct {
	header []byte         // of the first one
	bodies map[int][]byte // by offset
	end    int            // 0: not known
}

// maxDatagrams is how many datagrams may be incomplete. Then all of them are forgotten.
const maxDatagrams = 64

// add takes a fragment, and returns the whole packet if it was the last one to come, else nil.
func (r *reassembly) add(v nattest.View) []byte {
	d := datagram{v.Source, v.Destination, v.Protocol, uint32(v.ID)}
	if v.Source.Is6() {
		d.id = binary.BigEndian.Uint32(v.Header[len(v.Header)-4:])
	}
	f := r.all[d]
	if f == nil {
		if r.all == nil || len(r.all) == maxDatagrams {
			r.all = make(map[datagram]*fragments)
		}
		f = &fragments{bodies: make(map[int][]byte)}
		r.all[d] = f
	}
	if len(v.Body) > 0 {
		f.bodies[v.Offset] = v.Body
	}
	if v.Offset == 0 {
		f.header = v.Header
	}
	if !v.MF {
		f.end = v.Offset + len(v.Body)
	}
	var body []byte
	for f.bodies[len(body)] != nil {
		body = append(body, f.bodies[len(body)]...)
	}
	if f.end == 0 || len(body) != f.end || f.header == nil {
		return nil
	}
	delete(r.all, d)
	if v.Source.Is4() {
		whole := append(append([]byte(nil), f.header...), body...)
		binary.BigEndian.PutUint16(whole[2:], uint16(len(whole)))
		whole[6], whole[7] = 0, 0
		sumHeader(whole)
		return whole
	}
	whole := append(append([]byte(nil), f.header[:len(f.header)-8]...), body...)
	whole[6] = v.Protocol
	binary.BigEndian.PutUint16(whole[4:], uint16(len(whole)-40))
	return whole
}
