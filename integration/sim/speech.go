package sim

import (
	"encoding/binary"

	"culvert/nat/nattest"
	"culvert/nat/packet"
)

// A datagram begins with a word that nothing else has, its connection, who speaks, and its number.
const (
	magic      = 0xc01fe27
	helloBytes = 13
	floodID    = 0xffffff // of what nobody answers
)

// connectionOf returns the ID of the connection that v is of, and whether the client has sent it.
func connectionOf(v nattest.View) (id int, client, ok bool) {
	switch p := v.Payload; {
	case v.Protocol == packet.TCP:
		return int(v.Seq >> 16), v.Seq&serverBit == 0, true
	case v.Protocol == packet.SCTP && len(v.Body) >= 12+20:
		id, client, ok = associationOf(v.Body)
		for i, b := range v.Body[12+fixedBytes:] {
			ok = ok && b == content(id, client, i)
		}
		return id, client, ok
	case v.Protocol == packet.UDP && len(p) >= helloBytes && binary.BigEndian.Uint32(p) == magic:
		id = int(binary.BigEndian.Uint32(p[4:]))
		for i, b := range p[helloBytes:] {
			if b != content(id, p[12] == 1, i) {
				return id, false, false
			}
		}
		return id, p[12] == 1, true
	}
	return 0, false, false
}

// quotedID returns the ID of the connection of what an ICMP error quotes, if it quotes enough.
func quotedID(q nattest.View) (id int, ok bool) {
	switch {
	case q.Protocol == packet.TCP && len(q.Body) >= 20:
		return int(q.Seq >> 16), true
	case q.Protocol == packet.UDP && len(q.Payload) >= 8 && binary.BigEndian.Uint32(q.Payload) == magic:
		return int(binary.BigEndian.Uint32(q.Payload[4:])), true
	case q.Protocol == packet.SCTP && len(q.Body) >= 12+20:
		id, _, _ = associationOf(q.Body)
		return id, true
	}
	return 0, false
}

// content is what there is at a place of what a client, or a server, says.
func content(id int, client bool, at int) byte {
	b := byte(at*31 + at>>8 + id*7)
	if client {
		b ^= 0x55
	}
	return b
}

func (c *conn) contents(client bool, at, size int) []byte {
	b := make([]byte, size)
	for i := range b {
		b[i] = content(c.id, client, at+i)
	}
	return b
}

// headers is the size of the headers of a TCP segment.
func (c *conn) headers() int {
	if c.plan == plans[1] {
		return 40 + 20
	}
	return 20 + 20
}

// sendDatagram sends a datagram of the client, or of the server, with its number.
func (c *conn) sendDatagram(client bool, number uint32) {
	size := c.size
	if c.manner != large {
		size = min(size, c.mtu-c.headers()-helloBytes)
	}
	if c.protocol == packet.SCTP {
		c.sendData(client, number, size)
		return
	}
	b := binary.BigEndian.AppendUint32(nil, magic)
	b = binary.BigEndian.AppendUint32(b, uint32(c.id))
	b = binary.BigEndian.AppendUint32(b, number)
	b = append(b, byte(index(client)))
	from, to := c.ends(client)
	c.transmit(client, nattest.UDP{SourcePort: from.Port(), DestinationPort: to.Port(),
		Payload: append(b, c.contents(client, 0, size)...)})
}

// heed heeds a datagram: a server answers, unless the client only wants to listen and knows that it
// is heard.
func (c *conn) heed(client bool, v nattest.View) {
	switch {
	case c.protocol == packet.SCTP:
		c.chunk(client, v)
	case client:
		c.sendDatagram(false, binary.BigEndian.Uint32(v.Payload[8:]))
	default:
		c.answered++
	}
}

// An association of SCTP (RFC 9260, Section 5.1) has its connection's ID in both of its tags: that
// of packets to the client, and that of packets to the server.
const (
	toClient = 1 << 24
	toServer = 2 << 24

	chunkData       = 0
	chunkInit       = 1
	chunkInitAck    = 2
	chunkCookieEcho = 10
	chunkCookieAck  = 11
	fixedBytes      = 20 // of each chunk here, with its header
)

// What a client of SCTP waits for.
const (
	stageInit = iota
	stageCookie
	stageData
)

// associationOf returns the ID of the connection that a packet of SCTP is of, and whether the
// client has sent it.
func associationOf(b []byte) (id int, client, ok bool) {
	tag := binary.BigEndian.Uint32(b[4:])
	if tag == 0 && b[12] == chunkInit { // Section 8.5.1: its sender tells the tag that it wants
		tag = binary.BigEndian.Uint32(b[16:]) ^ toClient ^ toServer
	}
	return int(tag & 0xffffff), tag&^0xffffff == toServer, tag&^0xffffff == toClient || tag&^0xffffff == toServer
}

func (c *conn) sendData(client bool, number uint32, size int) {
	kind := uint8(chunkData)
	if client {
		kind = [...]uint8{chunkInit, chunkCookieEcho, chunkData}[c.stage]
	}
	c.sendChunk(client, kind, number, size)
}

// sendChunk sends a packet with one chunk of a kind.
func (c *conn) sendChunk(client bool, kind uint8, number uint32, size int) {
	far, own := uint32(toClient|c.id), uint32(toServer|c.id)
	if client {
		far, own = own, far
	}
	if kind == chunkInit {
		far = 0
	}
	if kind != chunkData {
		size = 0
	}
	b := append([]byte{kind, 3, 0, 0}, make([]byte, fixedBytes-4)...)
	binary.BigEndian.PutUint32(b[4:], own) // of INIT and INIT ACK
	binary.BigEndian.PutUint32(b[8:], number)
	b = append(b, c.contents(client, 0, size&^3)...)
	binary.BigEndian.PutUint16(b[2:], uint16(len(b)))
	from, to := c.ends(client)
	c.transmit(client, nattest.SCTP{SourcePort: from.Port(), DestinationPort: to.Port(), Tag: far, Chunks: b})
}

// chunk heeds a packet of SCTP.
func (c *conn) chunk(client bool, v nattest.View) {
	number := binary.BigEndian.Uint32(v.Body[12+8:])
	switch kind := v.Body[12]; {
	case kind == chunkInit:
		c.sendChunk(false, chunkInitAck, 0, 0)
	case kind == chunkInitAck:
		c.stage = max(c.stage, stageCookie)
		c.sendChunk(true, chunkCookieEcho, 0, 0)
	case kind == chunkCookieEcho:
		c.sendChunk(false, chunkCookieAck, 0, 0)
	case kind == chunkCookieAck:
		c.stage = stageData
		c.answered++
	case client:
		c.sendDatagram(false, number)
	default:
		c.answered++
	}
}
